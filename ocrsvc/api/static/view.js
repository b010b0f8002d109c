// Shows one image beside its text.

import { Problem } from './ask.js';
import { copy, draw, save, stem, textOf } from './keep.js';
import { fileOf, makeFile, wholePages } from './made_files.js';
import * as pointing from './pointing.js';
import * as paper from './sheet.js';
import { csvOf, drawTables } from './tables.js';
import { label, t, titleOf } from './words.js';

// Browsers need seconds to lay out megabytes of text.
const MAX_SHOWN = 100_000;
const MAX_PAGES_SHOWN = 10;

const $ = (id) => document.getElementById(id);
const frame = document.querySelector('.frame');
const sheet = document.querySelector('.sheet');

let shown = null;
let tab = 'lines';
let leaf = 0;
// The page whose boxes are on the sheet.
let drawn = null;
let isUnseen = false;
// AbortControllers of requests for other formats, by image.
const asking = {};

/**
 * Connect the view's buttons.
 *
 * @param turn called with the clockwise degrees of a user's rotation
 * @param acts what the buttons of problems do: retry, choose another file, change options
 * @param say announces a text, also to screen readers
 */
export function open({ turn, acts, say }) {
  $('left').onclick = () => turn(-90);
  $('right').onclick = () => turn(90);
  paper.open();
  $('save-picture').onclick = savePicture;
  $('page-before').onclick = () => leafTo(leaf - 1);
  $('page-after').onclick = () => leafTo(leaf + 1);
  $('leaf').onchange = () => leafTo(shown.answer.pages.findIndex((page) => page.page === $('leaf').valueAsNumber));
  frame.addEventListener('keydown', movePage);
  $('copy').onclick = () => toClipboard(content(), say);
  $('save').onclick = saveContent;
  for (const button of document.querySelectorAll('[data-tab]')) button.onclick = () => switchTo(button.dataset.tab);
  document.querySelector('.tabs').onkeydown = moveTab;
  for (const button of document.querySelectorAll('[data-file]')) button.onclick = () => makeFile(shown, button, say);
  pointing.open((index) => pick(index, say), say);
  $('panel').addEventListener('click', (event) => {
    const { act, code, table } = event.target.dataset;
    if (act) actOn(act, acts);
    if (code !== undefined) toClipboard(pageOf(shown.answer).barcodes[code].text, say);
    if (table !== undefined) toClipboard(csvOf([pageOf(shown.answer).tables[table]]), say);
  });
}

/** Show an image in its current state: waiting, done or failed. */
export function show(item) {
  const fresh = shown?.id !== item.id;
  if (fresh) leaf = 0;
  shown = { ...item };
  $('detail').hidden = false;
  $('name').textContent = item.name;
  if (item.answer) leaf = Math.min(leaf, Math.max(0, item.answer.pages.length - 1));
  if (fresh) showPicture();
  if (fresh || drawn !== pageOf(item.answer)) showPage();
  refresh();
}

/** Handle new pages of a document: show the first page, and the number of pages. */
export function grow(item) {
  if (shown?.id !== item.id) return;
  if (!drawn) show(item);
  else refreshLeaves();
}

function showPicture() {
  const { id } = shown;
  isUnseen = false;
  paper.showPicture(shown, pageOf(shown.answer)?.page, (isThere, image) => {
    if (shown?.id !== id) return;
    // Without a picture the boxes are drawn over the text.
    isUnseen = !isThere;
    if (isThere) drawThumbnail(image);
    else if (tab === 'lines') showPanel();
  });
}

/** The thumbnail of a document: its first shown page. */
function drawThumbnail(image) {
  const canvas = shown.element.querySelector('canvas');
  if (canvas.dataset.drawn || !image.src.startsWith('blob:') || image.src === shown.url) return;
  canvas.dataset.drawn = 'yes';
  canvas.width = 224;
  canvas.height = 168;
  canvas.getContext('2d').drawImage(image, 0, 0, 224, (224 * image.naturalHeight) / image.naturalWidth);
}

function showPage() {
  const page = pageOf(shown.answer);
  if (page && !drawn && !document.querySelector('.sheet img')) showPicture();
  drawn = page ?? null;
  paper.showBoxes(page, page?.angle ?? (Number(shown.rotate) || 0));
}

/** Show another page of the same document. */
function leafTo(other) {
  if (shown.answer?.pages[other] && other !== leaf) {
    leaf = other;
    drawn = null;
    paper.clear();
    showPage();
    if (tab === 'lines' || tab === 'tables') showPanel();
    $('panel').scrollTop = 0;
  }
  refreshLeaves();
  // A disabled button passes the focus to the other one.
  if (document.activeElement?.disabled) $(leaf ? 'page-before' : 'page-after').focus();
}

function movePage(event) {
  const by = { PageDown: 1, PageUp: -1 }[event.key];
  if (!by || !shown.answer?.pages[leaf + by]) return;
  event.preventDefault();
  leafTo(leaf + by);
}

/** Redraw in the current language and tab. */
export function refresh() {
  if (!shown) return;
  for (const button of document.querySelectorAll('[data-tab]')) {
    const chosen = button.dataset.tab === tab;
    button.setAttribute('aria-selected', String(chosen));
    button.tabIndex = chosen ? 0 : -1;
  }
  $('panel').setAttribute('aria-labelledby', `tab-${tab}`);
  showPanel();
  for (const id of ['copy', 'save']) $(id).disabled = !hasContent();
  for (const button of document.querySelectorAll('[data-file]')) button.disabled = !isRead();
  $('boxes').disabled = !shown.answer;
  // Only the service has the file of a job from the page's address.
  for (const id of ['left', 'right']) $(id).disabled = !shown.file;
  refreshLeaves();
  paper.fit();
}

function showPanel() {
  $('panel').replaceChildren(body());
  $('panel').setAttribute('aria-busy', String(!hasContent() && !$('panel').querySelector('.problem')));
}

/** Index of the shown page in the answer, and the page. */
function refreshLeaves() {
  $('no-picture').textContent = shown.problem && !shown.answer ? titleOfProblem(shown.problem.members) : '';
  const pages = shown.answer?.pages ?? [];
  const [before, after] = [$('page-before'), $('page-after')];
  $('leaves').hidden = pages.length < 2;
  if (pages.length) $('leaf').value = pages[leaf].page;
  $('leaf').max = pages.at(-1)?.page ?? 1;
  $('leaf').style.width = `${String($('leaf').max).length + 2.2}ch`;
  $('leaf-of').textContent = `/ ${shown.answer?.pages_total ?? pages.length}`;
  before.disabled = leaf === 0;
  after.disabled = leaf >= pages.length - 1;
  $('save-picture').disabled = !pages.length || Boolean(pages[leaf].error);
  $('facts').textContent = pages.length ? facts(shown.answer) : '';
}

/** Abort the requests for other formats of an image. */
export function stopAsking({ id }) {
  asking[id]?.abort();
  delete asking[id];
}

export function hide() {
  shown = drawn = null;
  $('detail').hidden = true;
  paper.clear();
}

/** The text of an image's state. */
export function stateOf(item) {
  if (item.state === 'sending') return t('sending', Math.round(item.share * 100));
  if (item.state === 'busy') return t('busy', item.waitS);
  if (item.state === 'reading' && item.answer) return t('reading_page', item.answer.pages.length + 1, item.answer.pages_wanted);
  if (item.state === 'done') return readOf(item.answer);
  if (item.answer?.pages.length) return `${t(item.state)} · ${readOf(item.answer)}`;
  return item.problem ? titleOfProblem(item.problem.members) : t(item.state);
}

/** The pressed button may disappear, so move the focus to the tab. */
function actOn(act, acts) {
  $(`tab-${tab}`).focus();
  const isFormat = act === 'retry' && shown.texts[tab] instanceof Problem;
  if (!isFormat) return acts[act]();
  delete shown.texts[tab];
  return refresh();
}

const pageOf = (answer) => answer?.pages[leaf];
const linesOf = (answer) => pageOf(answer).lines ?? [];
const isRead = () => Boolean(shown.answer?.pages.some((page) => !page.error)) && !shown.controller;

/** Number of lines and pages read. */
function readOf({ pages }) {
  const lines = t('read', pages.reduce((sum, page) => sum + (page.lines?.length ?? 0), 0));
  return pages.length > 1 ? `${t('pages_read', pages.length)}, ${lines}` : lines;
}

function facts(answer) {
  const page = pageOf(answer);
  const parts = [t('read', linesOf(answer).length)];
  if (answer.timing) parts.push(`${answer.timing.total_s.toFixed(2)} s`);
  if (page.width) parts.push(`${page.width} × ${page.height}`);
  if (page.angle) parts.push(t('turned', page.angle));
  if (page.masked) parts.push(t('masked', page.masked.length));
  if (answer.engine) parts.push(answer.engine.model === 'none' ? answer.engine.name : answer.engine.model);
  return parts.join(' · ');
}

async function savePicture() {
  const item = shown;
  const page = pageOf(item.answer);
  const name = item.answer.pages.length > 1 ? `${stem(item.name)}-${page.page}` : stem(item.name);
  save(`${name}-boxes.png`, await draw(paper.picture(), page));
}

// Results

function body() {
  if (shown.problem && !pageOf(shown.answer)) return problemOf(shown.problem);
  if (!pageOf(shown.answer)) return waiting();
  if (!shown.problem) return bodyOfPage();
  const both = document.createDocumentFragment();
  both.append(problemOf(shown.problem), bodyOfPage());
  return both;
}

function bodyOfPage() {
  if (tab !== 'lines' && tab !== 'tables') return written();
  const page = pageOf(shown.answer);
  if (page.error) return problemOf({ members: page.error });
  if (tab === 'tables') return page.tables?.length ? drawTables(page.tables) : paragraph(t(page.tables ? 'no_tables' : 'tables_off'));
  const all = document.createDocumentFragment();
  if (page.barcodes?.length) all.append(codesOf(page.barcodes));
  all.append(linesOf(shown.answer).length ? listOf(linesOf(shown.answer)) : paragraph(t('no_lines')));
  return all;
}

/** Bar codes as a list of buttons that copy their text. */
function codesOf(codes) {
  const list = document.createElement('ul');
  list.className = 'codes';
  codes.forEach(({ type, text }, index) => {
    const [element, button, kind] = ['li', 'button', 'small'].map((name) => document.createElement(name));
    button.type = 'button';
    button.dataset.code = index;
    kind.textContent = type;
    button.append(text, kind);
    element.append(button);
    list.append(element);
  });
  return list;
}

/** The answer in the tab's format, or the problem. */
function written() {
  askFor(tab);
  if (hasContent()) return plain(preview());
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
  element.textContent = words.slice(0, MAX_SHOWN);
  const isAll = words.length <= MAX_SHOWN && (tab !== 'json' || shown.answer.pages.length <= MAX_PAGES_SHOWN);
  if (isAll) return element;
  const both = document.createDocumentFragment();
  both.append(paragraph(t('beginning')), element);
  return both;
}

function listOf(lines) {
  const list = document.createElement('ol');
  list.className = 'lines';
  list.append(...lines.map(lineOf));
  const head = document.createElement('p');
  head.className = 'head muted';
  head.textContent = t('confidence');
  const all = document.createDocumentFragment();
  all.append(head, list);
  if (isUnseen) all.append(paragraph(t('not_shown')));
  return all;
}

function lineOf(line, index) {
  const [element, button, text, share] = ['li', 'button', 'span', 'small'].map((name) => document.createElement(name));
  button.type = 'button';
  button.dataset.i = index;
  button.tabIndex = index ? -1 : 0;
  text.textContent = line.text;
  share.textContent = `${Math.floor(line.confidence * 100)} %`;
  share.title = `${t('confidence')} ${line.confidence}`;
  paper.shade(button, line.confidence);
  button.append(text, share);
  element.append(button);
  return element;
}

const OWN_PROBLEMS = new Set(['offline', 'strange']);

const titleOfProblem = ({ code, title }) => (OWN_PROBLEMS.has(code) ? t(`${code}_title`) : titleOf(code, title));

function problemOf({ members }) {
  const card = $('problem').content.cloneNode(true);
  const { code, detail, id, remedy, status } = members;
  const isOwn = OWN_PROBLEMS.has(code);
  const put = (selector, words) => { card.querySelector(selector).textContent = words ?? ''; };
  put('h3', titleOfProblem(members));
  put('.detail', isOwn ? t(`${code}_detail`, status) : detail);
  put('.remedy', isOwn ? t(`${code}_remedy`) : remedy);
  put('.id', id ? t('request', id) : '');
  const button = card.querySelector('button');
  button.dataset.act = button.dataset.t = isOwn || members.retryable ? 'retry' : code === 'bad_option' ? 'options' : 'choose';
  if (button.dataset.act !== 'retry') button.dataset.t = { options: 'change_options', choose: 'choose_other' }[button.dataset.act];
  label(card);
  return card;
}

// Content of tabs

/** By tab: writer of the answer, file suffix, and media type. */
const OWN = {
  json: { write: (answer) => JSON.stringify(answer, null, 2), suffix: '.json', type: 'application/json' },
  text: { write: textOf, suffix: '.txt', type: 'text/plain;charset=utf-8' },
};
OWN.lines = OWN.text;
OWN.tables = { write: ({ pages }) => csvOf(pages.flatMap((page) => page.tables ?? [])), suffix: '.csv', type: 'text/csv;charset=utf-8' };

/** The answer in the chosen tab's format; null until it is available. The service writes other formats. */
function content() {
  if (!hasContent()) return null;
  return OWN[tab] ? OWN[tab].write(tab === 'json' ? shown.answer : wholePages(shown.answer)) : shown.texts[tab];
}

const hasContent = () => Boolean(pageOf(shown.answer)) && (Boolean(OWN[tab]) || typeof shown.texts[tab] === 'string');

/** The displayed part of the content. */
const preview = () =>
  tab === 'json' ? OWN.json.write({ ...shown.answer, pages: shown.answer.pages.slice(0, MAX_PAGES_SHOWN) }) : content();

/** Request a tab's format from the service once; `texts` of the image then has the text or the Problem. */
async function askFor(format) {
  const { id, texts } = shown;
  if (OWN[format] || !isRead() || texts[format] !== undefined) return;
  texts[format] = null;
  const { signal } = (asking[id] ??= new AbortController());
  try {
    texts[format] = await fileOf(shown, format, 'text', signal);
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

function pick(index, say) {
  const button = $('panel').querySelector(`button[data-i="${index}"]`);
  if (button) pointing.focusLine(button);
  pointing.mark(index, sheet);
  toClipboard(linesOf(shown.answer)[index].text, say);
}

async function toClipboard(words, say) {
  say((await copy(words)) ? t('copied') : t('not_copied'));
}
