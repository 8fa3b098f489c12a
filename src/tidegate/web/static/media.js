// Pictures, sounds and documents of a row. Guarantee: they come from the gateway alone, by the row's place, and only
// kinds that are known are shown. A sound is fetched when it is played and never plays by itself; a document is a link
// that downloads it. What cannot be shown is told in words.

import { html, memo, useState } from "./ui.js";

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
const SOUNDS = new Set(["audio/wav", "audio/mpeg"]);
const DOCUMENT = "application/pdf";

/** What it is, in a few words, as the gateway says it to models and in the terminal. */
export function about({ media_type, width = 0, height = 0, seconds = 0, note = "", name = "" }) {
  let detail = `${width} x ${height}`;
  if (media_type === DOCUMENT) detail = name;
  else if (media_type.startsWith("audio/")) detail = seconds && `${seconds.toFixed(1)} s`;
  return [media_type, detail, note].filter(Boolean).join(", ");
}

function DocumentLink({ media, source }) {
  return html`<figure class="media">
    <figcaption>Document: <a href=${source} download=${media.name || "document.pdf"}>${about(media)}</a></figcaption>
  </figure>`;
}

function Piece({ media, source }) {
  const [lost, setLost] = useState(false);
  const words = about(media);
  const sound = media.media_type.startsWith("audio/");
  const kind = sound ? "Sound" : "Picture";
  const shown = !lost && (sound ? SOUNDS : PICTURES).has(media.media_type);
  return html`<figure class="media">
    ${shown && !sound && html`<img src=${source} alt=${`${kind}: ${words}`} width=${media.width} height=${media.height} loading="lazy" onError=${() => setLost(true)} />`}
    ${shown && sound && html`<audio src=${source} controls preload="none" aria-label=${`${kind}: ${words}`} onError=${() => setLost(true)}></audio>`}
    <figcaption>${kind}: ${words}${lost && " (it cannot be loaded)"}</figcaption>
  </figure>`;
}

/** The media of one row; `seq` is its place in the transcript. */
export const MediaOf = memo(({ session, seq, media }) => {
  if (!media?.length || !session) return null;
  const path = `/api/sessions/${encodeURIComponent(session)}/messages/${seq}/media`;
  return media.map((each, number) => {
    const Shown = each.media_type === DOCUMENT ? DocumentLink : Piece;
    return html`<${Shown} key=${number} media=${each} source=${`${path}/${number}`} />`;
  });
});
