// Exports results: to the clipboard, to a file, as a picture with boxes.

const COLOURS = ['#ff0000', '#008000', '#0000ff', '#800080'];

/** Copy a text; true on success. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyTheOldWay(text);
  }
}

/** For plain HTTP, where navigator.clipboard is missing. */
function copyTheOldWay(text) {
  const before = document.activeElement;
  const area = document.createElement('textarea');
  area.value = text;
  area.className = 'away';
  document.body.append(area);
  area.select();
  const done = document.execCommand('copy');
  area.remove();
  before?.focus({ preventScroll: true });
  return done;
}

export function save(name, content, type) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

export const textOf = (answer) => answer.pages.map((page) => page.text ?? '').join('\n\f');

/** The texts of several images, each below its name. */
export const textsOf = (items) => items.map((item) => `==> ${item.name} <==\n${textOf(item.answer)}\n`).join('\n');

/** Several answers as one JSON array, each with its file name. */
export const jsonOf = (items) =>
  JSON.stringify(items.map((item) => ({ file: item.name, ...item.answer })), null, 2);

export const stem = (name) => name.replace(/\.[^.]*$/, '') || name;

/** A PNG of the image as displayed, with a frame around each line. */
export async function draw(image, page) {
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [page.width, page.height];
  const pen = canvas.getContext('2d');
  pen.fillStyle = '#fff';
  pen.fillRect(0, 0, page.width, page.height);
  if (image.naturalWidth) pen.drawImage(image, 0, 0, page.width, page.height);
  pen.lineWidth = Math.max(2, Math.max(page.width, page.height) / 800);
  page.lines.forEach((line, index) => {
    pen.strokeStyle = COLOURS[index % COLOURS.length];
    pen.beginPath();
    line.box.forEach(([x, y]) => pen.lineTo(x, y));
    pen.closePath();
    pen.stroke();
  });
  return new Promise((resolve) => canvas.toBlob(resolve, 'image/png'));
}
