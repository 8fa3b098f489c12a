// The images, sounds and documents of a row. They are loaded only from the gateway, by the row's sequence number, and
// only known types are shown. They are fetched with the page token, which an `img` or a link could not send, and kept as
// object URLs until their row is removed. An image is loaded when it is near the visible area, a sound when the user
// plays it, a document when the user saves it. Other types are described in words.

import { getBlob } from "./api.js";
import { html, memo, useEffect, useRef, useState } from "./ui.js";

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
const SOUNDS = new Set(["audio/wav", "audio/mpeg"]);
const DOCUMENT = "application/pdf";
const NEAR = "400px"; // to the view, when an image is fetched

/** A short description, the same as for models and in the terminal. */
export function about({ media_type, width = 0, height = 0, seconds = 0, note = "", name = "" }) {
  let detail = `${width} x ${height}`;
  if (media_type === DOCUMENT) detail = name;
  else if (media_type.startsWith("audio/")) detail = seconds && `${seconds.toFixed(1)} s`;
  return [media_type, detail, note].filter(Boolean).join(", ");
}

/** The content of `source` once `load` was called: an object URL, or `lost` if it cannot be loaded. */
function useObject(source) {
  const [object, setObject] = useState({ url: "", lost: false });
  const asked = useRef(null);
  useEffect(() => () => void asked.current?.then(({ url }) => URL.revokeObjectURL(url)), []);
  const lose = () => setObject({ url: "", lost: true });
  const load = () => {
    asked.current ??= getBlob(source).then(
      (blob) => ({ url: URL.createObjectURL(blob), lost: false }),
      () => {
        asked.current = null; // it can be retried
        return { url: "", lost: true };
      },
    );
    return asked.current.then((found) => {
      setObject(found);
      return found.url;
    });
  };
  return { ...object, load, lose };
}

function Caption({ kind, words, lost }) {
  return html`<figcaption>${kind}: ${words}${lost && " (cannot be loaded)"}</figcaption>`;
}

/** An empty image of the same proportions, so that the layout does not shift when the image arrives. */
const blank = (width, height) => `data:image/svg+xml,${encodeURIComponent(`<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}"/>`)}`;

function Picture({ media, source }) {
  const { url, lost, load, lose } = useObject(source);
  const place = useRef(null);
  const { width, height } = media;
  useEffect(() => {
    const watcher = new IntersectionObserver((seen) => seen.some((each) => each.isIntersecting) && load(), { rootMargin: NEAR });
    watcher.observe(place.current);
    return () => watcher.disconnect();
  }, []);
  return html`<figure class="media" ref=${place}>
    ${!lost && html`<img src=${url || blank(width, height)} alt=${`Image: ${about(media)}`} width=${width} height=${height} onError=${lose} />`}
    <${Caption} kind="Image" words=${about(media)} lost=${lost} />
  </figure>`;
}

function Sound({ media, source }) {
  const { url, lost, load, lose } = useObject(source);
  const words = about(media);
  return html`<figure class="media">
    ${!url && !lost && html`<button type="button" aria-label=${`Play sound: ${words}`} onClick=${load}>▶ Play</button>`}
    ${url && html`<audio src=${url} controls autoplay aria-label=${`Sound: ${words}`} onError=${lose}></audio>`}
    <${Caption} kind="Sound" words=${words} lost=${lost} />
  </figure>`;
}

function Document({ media, source }) {
  const { lost, load } = useObject(source);
  const save = async () => {
    const href = await load();
    if (href) Object.assign(document.createElement("a"), { href, download: media.name || "document.pdf" }).click();
  };
  const button = html`<button type="button" class="quiet fetch" onClick=${save}>${about(media)}</button>`;
  return html`<figure class="media"><${Caption} kind="Document" words=${button} lost=${lost} /></figure>`;
}

function Unknown({ media }) {
  return html`<figure class="media"><${Caption} kind=${media.media_type.startsWith("audio/") ? "Sound" : "Image"} words=${about(media)} /></figure>`;
}

function drawnBy({ media_type }) {
  if (media_type === DOCUMENT) return Document;
  return PICTURES.has(media_type) ? Picture : SOUNDS.has(media_type) ? Sound : Unknown;
}

/** The media of one row; `seq` is its sequence number in the transcript. */
export const MediaOf = memo(({ session, seq, media }) => {
  if (!media?.length || !session) return null;
  const path = `/api/sessions/${encodeURIComponent(session)}/messages/${seq}/media`;
  return media.map((each, number) => html`<${drawnBy(each)} key=${number} media=${each} source=${`${path}/${number}`} />`);
});
