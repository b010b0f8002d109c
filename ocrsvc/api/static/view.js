// How is one image shown beside what was read on it?

import { copy, draw, save, stem, textOf } from './keep.js';
import { ask, Problem } from './ask.js';
import { label, t, titleOf } from './words.js';

const SVG = 'http://www.w3.org/2000/svg';
const ZOOMS = [1, 1.5, 2, 3, 4, 6];
// What a line's confidence must reach to look certain, and where it looks as doubtful as can be.
const SURE = 0.97;
const DOUBTFUL = 0.6;

const $ = (id) => document.getElementById(id);
const frame = document.querySelector('.frame');
const stage = document.querySelector('.stage');
const sheet = document.querySelector('.sheet');

let shown = null;
let tab = 'lines';
let zoom = 0;
let leaf = 0;
let size = null;

/**
 * Make the buttons of the view work.
 *
 * @param turn called with the clockwise degrees by which the user turns the image on
 * @param retry called when the user asks for another try
 * @param say shows a word to everybody, screen readers included
 */
export function open({ turn, retry, say }) {
  $('left').onclick = () => turn(-90);
  $('right').onclick = () => turn(90);
  $('smaller').onclick = () => magnify(-1);
  $('larger').onclick = () => magnify(1);
  $('boxes').onclick = () => $('boxes').setAttribute('aria-pressed', String(sheet.classList.toggle('bare') === false));
  $('save-picture').onclick = savePicture;
  $('page-before').onclick = () => leafTo(leaf - 1);
  $('page-after').onclick = () => leafTo(leaf + 1);
  $('copy').onclick = () => toClipboard(content(), say);
  $('save').onclick = saveContent;
  for (const button of document.querySelectorAll('[data-tab]')) button.onclick = () => switchTo(button.dataset.tab);
  document.querySelector('.tabs').onkeydown = moveTab;
  new ResizeObserver(fit).observe(frame);
  tieTogether(sheet, say);
  tieTogether($('panel'), say);
  $('panel').addEventListener('keydown', moveLine);
  $('panel').addEventListener('click', (event) => event.target.closest('.problem button') && tryAgain(retry));
}

/** Show an image as it is now; it may be waiting, done or failed. */
export function show(item) {
  const fresh = shown?.id !== item.id;
  if (fresh) zoom = leaf = 0;
  const before = fresh ? null : shown?.answer;
  shown = { ...item };
  $('detail').hidden = false;
  $('name').textContent = item.name;
  if (item.answer) leaf = Math.min(leaf, item.answer.pages.length - 1);
  if (fresh) showImage(item);
  if (fresh || before !== item.answer) showBoxes(item);
  refresh();
}

/** Show another page of the same document. */
function leafTo(other) {
  leaf = other;
  zoom = 0;
  showImage(shown);
  showBoxes(shown);
  refresh();
  // A button that has become useless gives the focus to the other one.
  if (document.activeElement?.disabled) $(leaf ? 'page-before' : 'page-after').focus();
}

/** Show the same again, in the language and the tab of now. */
export function refresh() {
  if (!shown) return;
  for (const button of document.querySelectorAll('[data-tab]')) {
    const chosen = button.dataset.tab === tab;
    button.setAttribute('aria-selected', String(chosen));
    button.tabIndex = chosen ? 0 : -1;
  }
  $('panel').setAttribute('aria-labelledby', `tab-${tab}`);
  $('panel').replaceChildren(body());
  $('panel').setAttribute('aria-busy', String(content() === null && !$('panel').querySelector('.problem')));
  for (const id of ['save-picture', 'boxes']) $(id).disabled = !shown.answer;
  for (const id of ['copy', 'save']) $(id).disabled = content() === null;
  if (pageOf(shown.answer)?.error) $('save-picture').disabled = true;
  refreshLeaves(shown.answer?.pages ?? []);
  $('facts').textContent = shown.answer ? facts(shown.answer) : '';
  fit();
}

function refreshLeaves(pages) {
  $('leaves').hidden = pages.length < 2;
  $('leaf').textContent = pages.length < 2 ? '' : t('page_of', pages[leaf].page, shown.answer.pages_total);
  const [before, after] = [$('page-before'), $('page-after')];
  before.disabled = leaf === 0;
  after.disabled = leaf >= pages.length - 1;
}

export function hide() {
  shown = null;
  $('detail').hidden = true;
  sheet.replaceChildren();
}

/** The word for where an image stands. */
export function stateOf(item) {
  if (item.state === 'sending') return t('sending', Math.round(item.share * 100));
  if (item.state === 'busy') return t('busy', item.waitS);
  if (item.state === 'done') return readOf(item.answer);
  return t(item.state);
}

/** The button that was pressed goes away; the focus stays near. */
function tryAgain(retry) {
  $(`tab-${tab}`).focus();
  retry();
}

const pageOf = (answer) => answer?.pages[leaf];
const linesOf = (answer) => pageOf(answer).lines ?? [];

/** How much was read on all pages, and on how many. */
function readOf({ pages }) {
  const lines = t('read', pages.reduce((sum, page) => sum + (page.lines?.length ?? 0), 0));
  return pages.length > 1 ? `${t('pages_read', pages.length)}, ${lines}` : lines;
}

function facts(answer) {
  const page = pageOf(answer);
  const parts = [t('read', linesOf(answer).length), `${answer.timing.total_s.toFixed(2)} s`];
  if (page.width) parts.push(`${page.width} × ${page.height}`);
  if (page.angle) parts.push(t('turned', page.angle));
  return [...parts, answer.engine.model === 'none' ? answer.engine.name : answer.engine.model].join(' · ');
}

// The picture

function showImage(item) {
  const image = new Image();
  image.alt = '';
  image.src = item.url;
  image.onload = () => { if (shown?.id === item.id) { size ??= [image.naturalWidth, image.naturalHeight]; fit(); } };
  image.onerror = () => { if (shown?.id === item.id) { sheet.classList.add('blank'); refresh(); } };
  size = null;
  // Where a browser shows documents as pictures, it shows their first page.
  sheet.classList.toggle('blank', leaf > 0);
  sheet.replaceChildren(image);
}

function showBoxes(item) {
  sheet.querySelector('svg')?.remove();
  if (!item.answer) return;
  const page = pageOf(item.answer);
  if (page.error) return;
  size = [page.width, page.height];
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('viewBox', `0 0 ${page.width} ${page.height}`);
  svg.setAttribute('aria-hidden', 'true');
  linesOf(item.answer).forEach((line, index) => svg.append(...boxOf(line, index)));
  sheet.append(svg);
}

/** The frame of a line, and its text for a sheet whose picture cannot be shown. */
function boxOf(line, index) {
  const polygon = document.createElementNS(SVG, 'polygon');
  polygon.setAttribute('points', line.box.map((point) => point.join()).join(' '));
  polygon.dataset.i = index;
  shade(polygon, line.confidence);
  const [[x0, y0], [x1, y1], , [x3, y3]] = line.box;
  const [width, height] = [Math.hypot(x1 - x0, y1 - y0), Math.hypot(x3 - x0, y3 - y0)];
  const text = document.createElementNS(SVG, 'text');
  const angle = (Math.atan2(y1 - y0, x1 - x0) * 180) / Math.PI;
  text.setAttribute('transform', `translate(${x0} ${y0}) rotate(${angle}) translate(0 ${height * 0.8})`);
  text.setAttribute('font-size', height * 0.8);
  text.setAttribute('textLength', Math.max(1, width));
  text.setAttribute('lengthAdjust', 'spacingAndGlyphs');
  text.textContent = line.text;
  return [text, polygon];
}

function shade(element, confidence) {
  const doubt = Math.min(1, Math.max(0, (SURE - confidence) / (SURE - DOUBTFUL)));
  element.style.setProperty('--doubt', `${Math.round(doubt * 100)}%`);
}

const angleOf = (item) => pageOf(item.answer)?.angle ?? (Number(item.rotate) || 0);

/** The whole picture, upright, as large as the frame allows; times the zoom. */
function fit() {
  if (!shown) return;
  const angle = angleOf(shown);
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
  // A file that neither the browser nor the service can read has no sheet.
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

async function savePicture() {
  const item = shown;
  const page = pageOf(item.answer);
  const name = item.answer.pages.length > 1 ? `${stem(item.name)}-${page.page}` : stem(item.name);
  save(`${name}-boxes.png`, await draw(sheet.classList.contains('blank') ? new Image() : sheet.querySelector('img'), page));
}

// What was read

function body() {
  if (shown.problem) return problemOf(shown.problem);
  if (!shown.answer) return waiting();
  if (tab !== 'lines') return written();
  if (pageOf(shown.answer).error) return problemOf({ members: pageOf(shown.answer).error });
  return linesOf(shown.answer).length ? listOf(linesOf(shown.answer)) : paragraph(t('no_lines'));
}

/** The answer in the format of the tab, or what stands in its way. */
function written() {
  askFor(tab);
  if (content() !== null) return plain(content());
  return shown.texts[tab] ? problemOf(shown.texts[tab]) : withBar(paragraph(t('reading')));
}

function waiting() {
  const element = paragraph(stateOf(shown));
  if (!shown.controller) return element;
  return withBar(element, shown.state === 'sending' && shown.share < 1 ? shown.share : undefined);
}

function withBar(element, share) {
  const bar = document.createElement('progress');
  if (share !== undefined) bar.value = share;
  bar.setAttribute('aria-hidden', 'true');
  element.append(bar);
  return element;
}

function paragraph(words) {
  const element = document.createElement('p');
  element.className = 'quiet';
  element.textContent = words;
  return element;
}

function plain(words) {
  const element = document.createElement('pre');
  element.tabIndex = 0;
  element.textContent = words;
  return element;
}

function listOf(lines) {
  const list = document.createElement('ol');
  list.className = 'lines';
  list.append(...lines.map(lineOf));
  if (!sheet.classList.contains('blank')) return list;
  const both = document.createDocumentFragment();
  both.append(list, paragraph(t('not_shown')));
  return both;
}

function lineOf(line, index) {
  const [element, button, text, share] = ['li', 'button', 'span', 'small'].map((name) => document.createElement(name));
  button.type = 'button';
  button.dataset.i = index;
  button.tabIndex = index ? -1 : 0;
  text.textContent = line.text;
  share.textContent = Math.floor(line.confidence * 100);
  share.title = `${t('confidence')} ${line.confidence}`;
  shade(button, line.confidence);
  button.append(text, share);
  element.append(button);
  return element;
}

function problemOf({ members }) {
  const card = $('problem').content.cloneNode(true);
  const own = { offline: 'offline', strange: 'strange' }[members.code];
  const [title, detail, id] = [card.querySelector('h3'), card.querySelector('.detail'), card.querySelector('.id')];
  title.textContent = own ? t(`${own}_title`) : titleOf(members.code, members.title);
  detail.textContent = own === 'strange' ? t('status', members.status) : own ? t('offline_detail') : members.detail;
  card.querySelector('.remedy').textContent = own ? t(`${own}_remedy`) : (members.remedy ?? '');
  id.textContent = members.id ? t('request', members.id) : '';
  label(card);
  return card;
}

// What a tab shows, and how it is saved

/** By the name of a tab: what writes an answer, the end of its file's name, and its type. */
const OWN = {
  json: { write: (answer) => JSON.stringify(answer, null, 2), suffix: '.json', type: 'application/json' },
  text: { write: textOf, suffix: '.txt', type: 'text/plain;charset=utf-8' },
};
OWN.lines = OWN.text;

/** The answer as the chosen tab shows it; null while it is not there. Other formats than these are the service's. */
function content() {
  if (!shown.answer) return null;
  if (OWN[tab]) return OWN[tab].write(tab === 'json' ? shown.answer : wholePages(shown.answer));
  return typeof shown.texts[tab] === 'string' ? shown.texts[tab] : null;
}

/** No form but JSON has a place for a page that failed. */
const wholePages = (answer) => ({ ...answer, pages: answer.pages.filter((page) => !page.error) });

/** Ask the service for the image in the format of a tab, once; `texts` of the image holds the text or the Problem. */
async function askFor(format) {
  const { id, file, options, answer, texts } = shown;
  if (OWN[format] || !answer || texts[format] !== undefined) return;
  texts[format] = null;
  const pages = answer.pages.some((page) => page.error) ? { pages: wholePages(answer).pages.map((page) => page.page).join() } : {};
  try {
    texts[format] = await ask(file, { ...options, ...pages, format }, new AbortController().signal, () => {});
  } catch (error) {
    texts[format] = error instanceof Problem ? error : new Problem({ code: 'strange', status: error.name });
  }
  if (shown?.id === id && tab === format) refresh();
}

function saveContent() {
  const { suffix, type } = OWN[tab] ?? $(`tab-${tab}`).dataset;
  save(`${stem(shown.name)}${suffix}`, OWN[tab] === OWN.text ? `${content()}\n` : content(), type);
}

function switchTo(name) {
  tab = name;
  refresh();
}

function moveTab(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const names = [...document.querySelectorAll('[data-tab]')].map((button) => button.dataset.tab);
  switchTo(names.at((names.indexOf(tab) + step) % names.length));
  $(`tab-${tab}`).focus();
}

// Lines and boxes

/** Hovering, focusing and clicking do the same on a line and on its box. */
function tieTogether(root, say) {
  const indexOf = (event) => event.target.closest?.('[data-i]')?.dataset.i;
  root.addEventListener('pointerover', (event) => mark(indexOf(event), root));
  root.addEventListener('pointerleave', () => mark(undefined, root));
  root.addEventListener('focusin', (event) => mark(indexOf(event), root));
  root.addEventListener('click', (event) => indexOf(event) !== undefined && pick(indexOf(event), say));
}

function mark(index, from) {
  for (const element of document.querySelectorAll('.on')) element.classList.remove('on');
  if (index === undefined) return;
  for (const element of document.querySelectorAll(`[data-i="${index}"]`)) element.classList.add('on');
  const other = from === sheet ? $('panel') : frame;
  bringIntoView(other, other.querySelector(`[data-i="${index}"]`));
}

/** Scroll a box of the page, never the page itself, until an element inside can be seen. */
function bringIntoView(outer, inner) {
  if (!inner) return;
  const [seen, wanted] = [outer.getBoundingClientRect(), inner.getBoundingClientRect()];
  const off = (low, high, from, to) => (low < from ? low - from - 8 : high > to ? high - to + 8 : 0);
  outer.scrollBy(off(wanted.left, wanted.right, seen.left, seen.right), off(wanted.top, wanted.bottom, seen.top, seen.bottom));
}

function pick(index, say) {
  const button = $('panel').querySelector(`button[data-i="${index}"]`);
  if (button) focusLine(button);
  mark(index, sheet);
  toClipboard(linesOf(shown.answer)[index].text, say);
}

function focusLine(button) {
  for (const other of $('panel').querySelectorAll('button[data-i]')) other.tabIndex = -1;
  button.tabIndex = 0;
  button.focus({ preventScroll: true });
  if ($('panel').scrollHeight > $('panel').clientHeight) bringIntoView($('panel'), button);
  else button.scrollIntoView({ block: 'nearest' });
}

function moveLine(event) {
  const buttons = [...$('panel').querySelectorAll('button[data-i]')];
  const at = buttons.indexOf(event.target);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
  if (at < 0 || !buttons[to]) return;
  event.preventDefault();
  focusLine(buttons[to]);
}

async function toClipboard(words, say) {
  say((await copy(words)) ? t('copied') : t('not_copied'));
}
