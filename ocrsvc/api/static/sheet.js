// Draws a page with the boxes of its lines.

import { isDocument, pictureOf } from './pictures.js';
import { drawWords, forgetWords } from './word_boxes.js';

const SVG = 'http://www.w3.org/2000/svg';
const ZOOMS = [1, 1.5, 2, 3, 4, 6];
// Confidence at which a line looks certain, and below which it looks most doubtful.
const SURE = 0.97;
const DOUBTFUL = 0.6;

const $ = (id) => document.getElementById(id);
const frame = document.querySelector('.frame');
const stage = document.querySelector('.stage');
const sheet = document.querySelector('.sheet');

let zoom = 0;
let angle = 0;
let size = null;
let asking = null;
let lines = [];

/** Connect the buttons. */
export function open() {
  $('smaller').onclick = () => magnify(-1);
  $('larger').onclick = () => magnify(1);
  $('boxes').onclick = () => $('boxes').setAttribute('aria-pressed', String(sheet.classList.toggle('bare') === false));
  new ResizeObserver(fit).observe(frame);
}

/** Whether the sheet shows the text because there is no picture. */
export const isBlank = () => sheet.classList.contains('blank');

/** The picture, or null. */
export const picture = () => (isBlank() ? new Image() : sheet.querySelector('img'));

/**
 * Show the picture of a page when it is available.
 *
 * @param item the image or document
 * @param number page number from 1; missing before the first page is read
 * @param tell called when it is known whether there is a picture
 */
export function showPicture(item, number, tell) {
  asking?.abort();
  asking = new AbortController();
  [zoom, size] = [0, null];
  clear();
  sheet.classList.add('blank');
  const { signal } = asking;
  const fail = () => { if (!signal.aborted) tell(false); };
  const fromService = () => pictureOf(item, number, signal).then((url) => load(url, signal, tell, fail), fail);
  if (!isDocument(item)) load(item.url, signal, tell, () => (number ? fromService() : fail()));
  else if (number) fromService();
}

function load(url, signal, tell, otherwise) {
  const image = new Image();
  image.alt = '';
  image.onload = () => {
    if (signal.aborted) return;
    size ??= [image.naturalWidth, image.naturalHeight];
    sheet.querySelector('img')?.remove();
    sheet.prepend(image);
    sheet.classList.remove('blank');
    fit();
    tell(true, image);
  };
  image.onerror = () => { if (!signal.aborted) otherwise(); };
  image.src = url;
}

/** Show the boxes of a page's lines on the upright page. */
export function showBoxes(page, turnedBy) {
  angle = turnedBy;
  sheet.querySelector('svg')?.remove();
  forgetWords();
  lines = page?.lines ?? [];
  if (!page?.width) return fit();
  size = [page.width, page.height];
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('viewBox', `0 0 ${page.width} ${page.height}`);
  svg.setAttribute('aria-hidden', 'true');
  svg.append(...(page.regions ?? []).flatMap((region) => areaOf(region, page.width)), ...lines.flatMap(boxOf));
  svg.append(...(page.barcodes ?? []).flatMap((code) => areaOf(code, page.width)));
  sheet.append(svg);
  return fit();
}

/** Frame the words of a line, given by its index. */
export const showWords = (index) => drawWords(sheet.querySelector('svg'), lines[index]);

export function clear() {
  sheet.replaceChildren();
  forgetWords();
}

/** The frame of a region or bar code, with its type. */
function areaOf({ box, type }, width) {
  const polygon = polygonOf(box);
  polygon.setAttribute('class', 'area');
  const text = document.createElementNS(SVG, 'text');
  text.setAttribute('class', 'area');
  text.setAttribute('x', box[0][0]);
  text.setAttribute('y', box[0][1]);
  text.setAttribute('font-size', width / 70);
  text.textContent = type.replace('_', ' ');
  return [polygon, text];
}

function polygonOf(box) {
  const polygon = document.createElementNS(SVG, 'polygon');
  polygon.setAttribute('points', box.map((point) => point.join()).join(' '));
  return polygon;
}

/** A line's frame, with its text if there is no picture. */
function boxOf(line, index) {
  const polygon = polygonOf(line.box);
  polygon.dataset.i = index;
  shade(polygon, line.confidence);
  const [[x0, y0], [x1, y1], , [x3, y3]] = line.box;
  const [width, height] = [Math.hypot(x1 - x0, y1 - y0), Math.hypot(x3 - x0, y3 - y0)];
  const text = document.createElementNS(SVG, 'text');
  const slope = (Math.atan2(y1 - y0, x1 - x0) * 180) / Math.PI;
  text.setAttribute('transform', `translate(${x0} ${y0}) rotate(${slope}) translate(0 ${height * 0.8})`);
  text.setAttribute('font-size', height * 0.8);
  text.setAttribute('textLength', Math.max(1, width));
  text.setAttribute('lengthAdjust', 'spacingAndGlyphs');
  text.textContent = line.text;
  return [text, polygon];
}

/** Colour an element by confidence. */
export function shade(element, confidence) {
  const doubt = Math.min(1, Math.max(0, (SURE - confidence) / (SURE - DOUBTFUL)));
  element.style.setProperty('--doubt', `${Math.round(doubt * 100)}%`);
}

/** Size the upright page to fit the frame, times the zoom. */
export function fit() {
  const [width, height] = size ?? [1, 1];
  const [across, down] = angle % 180 ? [height, width] : [width, height];
  const room = getComputedStyle(frame);
  const wide = frame.clientWidth - parseFloat(room.paddingLeft) * 2;
  const high = (parseFloat(room.maxHeight) || frame.clientHeight) - parseFloat(room.paddingTop) * 2;
  const scale = Math.min(wide / across, high / down, 2) * ZOOMS[zoom];
  stage.style.width = `${Math.floor(across * scale)}px`;
  stage.style.height = `${Math.floor(down * scale)}px`;
  sheet.style.width = `${width * scale}px`;
  sheet.style.height = `${height * scale}px`;
  sheet.style.transform = `translate(-50%, -50%) rotate(${angle}deg)`;
  // An unreadable file has no sheet.
  sheet.hidden = size === null;
  $('smaller').disabled = zoom === 0;
  $('larger').disabled = zoom === ZOOMS.length - 1;
}

function magnify(step) {
  const [x, y] = [frame.scrollLeft + frame.clientWidth / 2, frame.scrollTop + frame.clientHeight / 2];
  const before = ZOOMS[zoom];
  zoom = Math.min(ZOOMS.length - 1, Math.max(0, zoom + step));
  fit();
  const ratio = ZOOMS[zoom] / before;
  frame.scrollTo(x * ratio - frame.clientWidth / 2, y * ratio - frame.clientHeight / 2);
}
