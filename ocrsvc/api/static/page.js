// Manages the files: their list, their states, and which is read next.

import { ask, Problem } from './ask.js';
import * as jobs from './jobs.js';
import { copy, jsonOf, save, textsOf } from './keep.js';
import { findModels, showModels } from './models.js';
import { forget, isDocument } from './pictures.js';
import * as view from './view.js';
import { preferred, remember, speak, t } from './words.js';

const AT_ONCE = 3;
const UNDER_WAY = new Set(['sending', 'reading', 'busy']);

const $ = (id) => document.getElementById(id);
const items = [];
let current = null;
let ids = 0;

// Adding images

function add(files) {
  addItems([...files].map((file) => newItem(file)));
}

function addItems(fresh) {
  if (!fresh.length) return;
  items.push(...fresh);
  $('items').append(...fresh.map((item) => item.element));
  document.body.classList.remove('empty');
  $('tray').hidden = false;
  if (!current || !UNDER_WAY.has(current.state)) choose(fresh[0]);
  for (const item of fresh) refresh(item);
  drawThumbnails(fresh);
  next();
}

/** An item for a file, or for a job whose file only the service has. */
function newItem(file, job = null, name = file.name) {
  ids += 1;
  const item = { id: ids, file, job, url: file && URL.createObjectURL(file), rotate: null, state: 'waiting', share: 0, waitS: 0, answer: null, problem: null, controller: null, options: null, texts: {} };
  // Pasted images have no name or always the same one.
  item.name = name && name !== 'image.png' ? name : `${t('pasted')}-${ids}.png`;
  item.element = $('item').content.cloneNode(true).firstElementChild;
  item.element.querySelector('.file').textContent = item.name;
  item.element.querySelector('.pick').onclick = () => choose(item);
  item.element.querySelector('.drop-one').onclick = () => (isOpen(item) ? cancel(item) : remove(item));
  item.element.querySelector('.pick').onkeydown = (event) => move(event, item);
  return item;
}

/** One after the other: decoding a hundred photos at once exhausts the browser's memory. */
async function drawThumbnails(fresh) {
  for (const item of fresh.filter(({ file }) => file)) {
    try {
      const picture = await createImageBitmap(item.file, { resizeHeight: 168, resizeQuality: 'medium' });
      const canvas = item.element.querySelector('canvas');
      canvas.width = Math.min(448, picture.width);
      canvas.height = picture.height;
      canvas.getContext('2d').drawImage(picture, 0, 0);
      picture.close();
    } catch { /* a browser cannot show every format that the service reads */ }
  }
}

// Reading images

const isOpen = (item) => item.state === 'waiting' || UNDER_WAY.has(item.state);

function next() {
  while (items.filter((item) => UNDER_WAY.has(item.state)).length < AT_ONCE) {
    const item = items.find((one) => one.state === 'waiting');
    if (!item) break;
    read(item);
  }
}

async function read(item) {
  const controller = new AbortController();
  view.stopAsking(item);
  Object.assign(item, { controller, answer: null, problem: null, share: 0, options: optionsFor(item), texts: {} });
  put(item, 'sending');
  try {
    item.answer = await (item.job ? followJob(item, controller) : readFile(item, controller));
    settle(item, controller, 'done');
  } catch (error) {
    if (error.name !== 'AbortError') item.problem = error instanceof Problem ? error : new Problem({ code: 'strange', status: error.name });
    settle(item, controller, error.name === 'AbortError' ? 'cancelled' : 'failed');
  }
}

async function readFile(item, controller) {
  const { signal } = controller;
  const take = isDocument(item) ? (answer) => grow(item, controller, answer) : undefined;
  const told = (state, value) => tell(item, controller, state, value);
  try {
    return await ask(item.file, item.options, signal, told, { take });
  } catch (error) {
    if (!take || !jobs.isTooLong(error)) throw error;
    item.job = await jobs.submit(item, signal, told).catch((refused) => { throw refused.members?.code === 'jobs_off' ? error : refused; });
  }
  refreshAddress();
  return followJob(item, controller);
}

function followJob(item, controller) {
  put(item, 'reading');
  return jobs.follow(item.job, controller.signal, (answer) => grow(item, controller, answer));
}

function refreshAddress() {
  jobs.putInAddress(items.flatMap(({ job }) => job ?? []));
}

function tell(item, controller, state, value) {
  if (item.controller !== controller) return;
  if (state === 'sending') item.share = value;
  if (state === 'busy') item.waitS = value;
  if (state === 'reading') item.sentS = value;
  put(item, state);
}

/** Handle pages of a document that arrive while others are read. */
function grow(item, controller, answer) {
  if (item.controller !== controller) return;
  item.answer = answer;
  refreshItem(item);
  refreshTray();
  view.grow(item);
}

/** Whether a newer attempt has replaced this one. */
function settle(item, controller, state) {
  if (item.controller === controller) {
    item.controller = null;
    put(item, state);
    announce(`${item.name}: ${view.stateOf(item)}`);
  }
  next();
}

function again(item) {
  item.controller?.abort();
  if (item.file) endJob(item);
  Object.assign(item, { controller: null, answer: null, problem: null });
  put(item, 'waiting');
  next();
}

function cancel(item) {
  if (!isOpen(item)) return;
  endJob(item);
  if (item.controller) item.controller.abort();
  else put(item, 'cancelled');
}

/** Delete the item's job, if it has one. */
function endJob(item) {
  if (!item.job) return;
  jobs.remove(item.job);
  item.job = null;
  refreshAddress();
}

function turn(degrees) {
  const now = current.answer?.pages[0]?.angle ?? (Number(current.rotate) || 0);
  current.rotate = String((now + degrees + 360) % 360);
  again(current);
}

function optionsFor(item) {
  const form = new FormData($('settings'));
  const options = { rotate: item.rotate ?? form.get('rotate'), words: 'true' };
  if (form.get('max_side')) options.max_side = form.get('max_side');
  if (Number(form.get('min_confidence'))) options.min_confidence = Number(form.get('min_confidence')) / 100;
  if (form.get('pages').trim() && isDocument(item)) options.pages = form.get('pages');
  for (const name of ['lang', 'model']) if (form.get(name)) options[name] = form.get(name);
  if (form.has('line')) options.detect = 'false';
  for (const name of ['upright_boxes', 'tables', 'barcodes', 'layout']) if (form.has(name)) options[name] = 'true';
  if (form.has('mask')) options.mask = form.getAll('mask').join();
  if (form.get('text_layer') && isDocument(item)) options.text_layer = form.get('text_layer');
  return options;
}

// Showing progress

function put(item, state) {
  item.state = state;
  refresh(item);
}

function refresh(item) {
  refreshItem(item);
  if (item === current) view.show(item);
  refreshTray();
}

function refreshItem(item) {
  const { element, state } = item;
  element.dataset.state = state;
  element.querySelector('.state').textContent = element.title = view.stateOf(item);
  const bar = element.querySelector('progress');
  bar.hidden = !UNDER_WAY.has(state);
  if (state === 'sending' && item.share < 1) bar.value = item.share;
  else if (item.answer?.pages_wanted) bar.value = shareOf(item);
  else bar.removeAttribute('value');
  const word = t(isOpen(item) ? 'cancel_one' : 'remove', item.name);
  const button = element.querySelector('.drop-one');
  button.setAttribute('aria-label', word);
  button.title = word;
}

function refreshTray() {
  const done = items.filter((item) => !isOpen(item)).length;
  const isLone = items.length === 1 && items[0].state !== 'done';
  $('count').textContent = isLone ? view.stateOf(items[0]) : t('count', done, items.length);
  $('all').value = items.length ? items.reduce((sum, item) => sum + shareOf(item), 0) / items.length : 0;
  $('all').hidden = $('cancel').hidden = done === items.length;
  const isOne = answered().length < 2;
  for (const button of document.querySelectorAll('.many')) button.hidden = isOne;
  $('again').disabled = items.length === 0;
}

/** Progress of an image or document, 0 to 1. */
function shareOf(item) {
  if (!isOpen(item)) return 1;
  return item.answer?.pages_wanted ? item.answer.pages.length / item.answer.pages_wanted : 0;
}

function choose(item) {
  current?.element.querySelector('.pick').removeAttribute('aria-current');
  current = item;
  item.element.querySelector('.pick').setAttribute('aria-current', 'true');
  item.element.scrollIntoView({ block: 'nearest', inline: 'nearest' });
  view.show(item);
}

function move(event, item) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const other = step && items[items.indexOf(item) + step];
  if (event.key === 'Delete') remove(item);
  if (!other) return;
  event.preventDefault();
  choose(other);
  other.element.querySelector('.pick').focus();
}

function remove(item) {
  cancel(item);
  const at = items.indexOf(item);
  items.splice(at, 1);
  item.element.remove();
  letGo(item);
  const near = items[Math.min(at, items.length - 1)];
  if (!near) return empty();
  if (item === current) choose(near);
  near.element.querySelector('.pick').focus();
  return refreshTray();
}

function clear() {
  for (const item of items.splice(0)) {
    cancel(item);
    item.element.remove();
    letGo(item);
  }
  empty();
}

function letGo(item) {
  endJob(item);
  if (item.url) URL.revokeObjectURL(item.url);
  view.stopAsking(item);
  forget(item);
}

function empty() {
  current = null;
  view.hide();
  $('tray').hidden = true;
  document.body.classList.add('empty');
  $('choose').focus();
  refreshTray();
}

function announce(words) {
  $('said').textContent = words;
}

let hiding = 0;
function say(words, { quietly } = {}) {
  announce(words);
  if (quietly) return;
  $('toast').textContent = words;
  $('toast').hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => { $('toast').hidden = true; }, 1500);
}

// Start

function begin() {
  const changeOptions = () => { $('options').open = true; $('options').scrollIntoView(); $('again').focus(); };
  view.open({ turn, acts: { retry: () => again(current), choose: () => $('files').click(), options: changeOptions }, say });
  for (const [button, input] of [['choose', 'files'], ['photo', 'camera']]) {
    $(button).onclick = () => $(input).click();
    $(input).onchange = () => { add($(input).files); $(input).value = ''; };
  }
  listenForDrops();
  document.addEventListener('paste', (event) => {
    if (event.clipboardData.files.length) { event.preventDefault(); add(event.clipboardData.files); }
  });
  $('settings').onsubmit = (event) => { event.preventDefault(); for (const item of items) { item.rotate = null; again(item); } };
  $('settings').oninput = showShare;
  $('cancel').onclick = () => { for (const item of items) if (isOpen(item)) cancel(item); };
  $('clear').onclick = clear;
  $('copy-all').onclick = async () => say((await copy(textsOf(answered()))) ? t('copied') : t('not_copied'));
  $('text-all').onclick = () => save('ocr.txt', textsOf(answered()), 'text/plain;charset=utf-8');
  $('json-all').onclick = () => save('ocr.json', jsonOf(answered()), 'application/json');
  for (const button of document.querySelectorAll('[data-language]'))
    button.onclick = () => { remember(button.dataset.language); change(button.dataset.language); };
  change(preferred());
  refreshTray();
  openJobs();
  addEventListener('hashchange', openJobs);
  if ('models' in $('settings').dataset) findModels($('settings'));
}

/** Open the jobs that the page's address names. */
async function openJobs() {
  const { signal } = new AbortController();
  const known = new Set(items.map(({ job }) => job));
  const named = jobs.idsInAddress().filter((id) => !known.has(id)).map(async (id) => newItem(null, id, await jobs.statusOf(id, signal).then(({ name }) => name, () => id)));
  addItems(await Promise.all(named));
}

const answered = () => items.filter((item) => item.answer && !item.controller);

function change(language) {
  speak(language);
  showShare();
  showModels($('settings'));
  for (const item of items) refresh(item);
  view.refresh();
}

function showShare() {
  const share = Number($('settings').elements.min_confidence.value);
  $('share').textContent = share ? `${share} %` : t('auto');
}

function listenForDrops() {
  const over = (event) => {
    if (!event.dataTransfer?.types.includes('Files')) return;
    event.preventDefault();
    document.body.classList.add('dropping');
  };
  addEventListener('dragenter', over);
  addEventListener('dragover', over);
  addEventListener('dragleave', (event) => event.relatedTarget === null && document.body.classList.remove('dropping'));
  addEventListener('drop', (event) => {
    document.body.classList.remove('dropping');
    if (!event.dataTransfer?.files.length) return;
    event.preventDefault();
    add(event.dataTransfer.files);
  });
}

begin();
