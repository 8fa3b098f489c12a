// Templates and hooks for all modules of the page. Text in a template always becomes a text node or a plain attribute;
// no module sets HTML from a string.

import { Component, h, render } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export { render };
export { useEffect, useLayoutEffect, useRef, useState } from "./vendor/hooks.js";
export { batch, computed, effect, signal } from "./vendor/signals.js";

export const html = htm.bind(h);

/** A component that is rendered again only when one of its properties has changed. */
export function memo(draw) {
  return class extends Component {
    shouldComponentUpdate(next) {
      const names = Object.keys(next);
      return names.length !== Object.keys(this.props).length || names.some((name) => next[name] !== this.props[name]);
    }

    render(props) {
      return draw(props);
    }
  };
}

/** A random key. `crypto.randomUUID` is not available on plain http except on loopback; this function is. */
export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
