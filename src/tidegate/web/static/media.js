// Pictures, sounds and documents of a row. Guarantee: they come from the gateway alone, by the row's place, and only
// kinds that are known are shown. They are fetched with the page token, which an `img` or a link could not send, and held
// as objects of the page until their row is gone: a picture when it comes near the view, a sound when it is played,
// never by itself, a document when it is saved. What cannot be shown is told in words.

import { getBlob } from "./api.js";
import { html, memo, useEffect, useRef, useState } from "./ui.js";

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
const SOUNDS = new Set(["audio/wav", "audio/mpeg"]);
const DOCUMENT = "application/pdf";
const NEAR = "400px"; // to the view, when a picture is fetched

/** What it is, in a few words, as the gateway says it to models and in the terminal. */
export function about({ media_type, width = 0, height = 0, seconds = 0, note = "", name = "" }) {
  let detail = `${width} x ${height}`;
  if (media_type === DOCUMENT) detail = name;
  else if (media_type.startsWith("audio/")) detail = seconds && `${seconds.toFixed(1)} s`;
  return [media_type, detail, note].filter(Boolean).join(", ");
}

/** What lies at `source`, once `load` was called: the `url` of an object of this page, or that it is lost. */
function useObject(source) {
  const [object, setObject] = useState({ url: "", lost: false });
  const asked = useRef(null);
  useEffect(() => () => void asked.current?.then(({ url }) => URL.revokeObjectURL(url)), []);
  const lose = () => setObject({ url: "", lost: true });
  const load = () => {
    asked.current ??= getBlob(source).then(
      (blob) => ({ url: URL.createObjectURL(blob), lost: false }),
      () => {
        asked.current = null; // it may be tried again
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
  return html`<figcaption>${kind}: ${words}${lost && " (it cannot be loaded)"}</figcaption>`;
}

/** Of the picture's own proportions, so that nothing moves when it comes. */
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
    ${!lost && html`<img src=${url || blank(width, height)} alt=${`Picture: ${about(media)}`} width=${width} height=${height} onError=${lose} />`}
    <${Caption} kind="Picture" words=${about(media)} lost=${lost} />
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
  return html`<figure class="media"><${Caption} kind=${media.media_type.startsWith("audio/") ? "Sound" : "Picture"} words=${about(media)} /></figure>`;
}

function drawnBy({ media_type }) {
  if (media_type === DOCUMENT) return Document;
  return PICTURES.has(media_type) ? Picture : SOUNDS.has(media_type) ? Sound : Unknown;
}

/** The media of one row; `seq` is its place in the transcript. */
export const MediaOf = memo(({ session, seq, media }) => {
  if (!media?.length || !session) return null;
  const path = `/api/sessions/${encodeURIComponent(session)}/messages/${seq}/media`;
  return media.map((each, number) => html`<${drawnBy(each)} key=${number} media=${each} source=${`${path}/${number}`} />`);
});
