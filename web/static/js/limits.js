// What the server takes. The page says so before it sends.

export const MAX_TEXT = 256 * 1024; // bytes of UTF-8
export const MAX_FRAME = 512 * 1024; // bytes of the JSON frame; quotes and line ends take two there
const ENVELOPE = 1024; // the frame's other fields, generously

const encoder = new TextEncoder();

/** Gives {bytes, limit, fits} of a message: of its text, or, when the text fits, of its frame. */
export function measure(text) {
  const bytes = text.length * 3 <= 1024 ? text.length : encoder.encode(text).length;
  if (bytes > MAX_TEXT) return { bytes, limit: MAX_TEXT, fits: false };
  if (bytes * 6 > MAX_FRAME - ENVELOPE) {
    const framed = encoder.encode(JSON.stringify(text)).length;
    if (framed > MAX_FRAME - ENVELOPE) return { bytes: framed, limit: MAX_FRAME - ENVELOPE, fits: false };
  }
  return { bytes, limit: MAX_TEXT, fits: true };
}
