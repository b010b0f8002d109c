// The operators' page: polls the service every two seconds.

import { bytes, counts, duration, number, seconds, share } from './format.js';
import { showKeys } from './keys.js';
import { draw } from './plots.js';
import { put, show } from './tables.js';

const EVERY_MS = 2000;
const KEYS_EVERY_MS = 10_000;
const ANSWER_MS = 10_000;
const SURE_MS = 5000;
const MEMORY_SHARE = 0.92;
const LONG_S = 900;
const RECENT_S = 60;
const REFUSED_SHARE = 0.01;
const ROWS = 20;

const $ = (id) => document.getElementById(id);
let paused = false;
let timer = 0;
let turn = 0;
let keysMs = -Infinity;
let since = null;
let last = null;
let fault = '';

const TILES = [
  { title: 'Requests / s', curve: 'requests_per_s', format: number },
  { title: 'Images / s', curve: 'images_per_s', format: number },
  { title: 'In flight', curve: 'in_flight', format: number },
  { title: 'Images waiting', curve: 'waiting', format: number },
  { title: 'Wait, p95', curve: 'wait_p95_s', format: seconds },
  { title: 'Image time, p95', curve: 'total_p95_s', format: seconds },
  { title: 'Service failures / s', curve: 'own_failures_per_s', format: number, bad: true },
  { title: 'Caller failures / s', curve: 'caller_failures_per_s', format: number },
  { title: 'Refused / s', curve: 'refused_per_s', format: number, bad: true },
  { title: 'Workers ready', curve: 'ready', format: number, top: (now) => now.workers_wanted },
  { title: 'Memory in use', curve: 'memory_used_bytes', format: bytes, top: (now) => now.memory.limit_bytes },
  { title: 'GPU memory', curve: 'gpu_used_bytes', format: bytes, gpu: true, top: (now) => sum(now.gpus, 'total_bytes') },
  { title: 'GPU busy', curve: 'gpu_busy_ratio', format: share, gpu: true, top: () => 1 },
];

const sum = (items, name) => items.reduce((total, item) => total + item[name], 0);
const ago = (now, when) => `${duration(now.now_s - when)} ago`;

// Polling

/** Poll now and then regularly; replaces earlier polling. */
async function refresh() {
  clearTimeout(timer);
  turn += 1;
  const current = turn;
  if (paused || document.hidden) return;
  const [data, error] = await overview();
  if (current !== turn) return;
  since = error ? since ?? new Date() : null;
  if (error) showTrouble(error);
  else showAll(data);
  if (!error && performance.now() - keysMs >= KEYS_EVERY_MS) {
    keysMs = performance.now();
    // The next poll reports a failure.
    showKeys($('keys-section'), $('keys')).catch(() => {});
  }
  timer = setTimeout(refresh, EVERY_MS);
}

/** The service's data, or the error. */
async function overview() {
  try {
    const response = await fetch('ops/overview', { signal: AbortSignal.timeout(ANSWER_MS) });
    return response.ok ? [await response.json(), null] : [null, await problemOf(response)];
  } catch (error) {
    return [null, error];
  }
}

async function problemOf(response) {
  const problem = await response.json().catch(() => ({}));
  return new Error(`The service answers ${response.status}. ${problem.detail ?? ''} ${problem.remedy ?? ''}`.trim());
}

function showTrouble(error) {
  document.body.classList.add('stale');
  $('trouble').hidden = false;
  const words = error instanceof TypeError || error.name === 'TimeoutError' ? 'The service does not answer.' : error.message;
  put($('trouble'), `${words} Since ${since.toLocaleTimeString('en-GB')}; retrying every ${EVERY_MS / 1000} s.`);
}

// Showing

function showAll(now) {
  last = now;
  document.body.classList.remove('stale');
  $('trouble').hidden = true;
  const engine = [now.engine.name, now.engine.model, now.engine.device].filter(Boolean).join(' ');
  put($('facts'), `${now.version} · ${engine} · up ${duration(now.now_s - now.started_s)}`);
  showNotes(notesOf(now));
  showTiles(now);
  showWorkers(now);
  showErrors(now);
  showDenied(now);
  showDocuments(now);
}

/** Notes for the operator, as [tone, text]. */
function notesOf(now) {
  const ready = now.workers.filter((worker) => worker.state === 'ready').length;
  const late = now.workers.filter((worker) => (worker.wanted_s_ago ?? 0) > LONG_S);
  const failed = now.errors.filter((error) => error.fault === 'service' && now.now_s - error.when_s < RECENT_S);
  const refused = lastMinute(now, 'refused_per_s') / (lastMinute(now, 'requests_per_s') || 1);
  const used = now.memory.limit_bytes ? now.memory.used_bytes / now.memory.limit_bytes : 0;
  const notes = [
    [now.workers_wanted > 0 && ready === 0, 'wrong', 'No worker is ready.'],
    [ready > 0 && ready < now.workers_wanted, 'doubtful', `${ready} of ${now.workers_wanted} workers are ready.`],
    [now.boot_failures.in_a_row > 0, 'wrong', `${now.boot_failures.in_a_row} workers in a row could not start; see the log.`],
    [now.counts.stuck_engine_threads > 0, 'wrong', `${now.counts.stuck_engine_threads} engine threads are stuck.`],
    [late.length > 0, 'doubtful', `Worker ${late.map((worker) => worker.slot).join(', ')} has waited long for its replacement.`],
    [failed.length > 0, 'wrong', `${failed.length} failures of the service in the last minute.`],
    [refused > REFUSED_SHARE, 'wrong', `${share(refused)} of the requests in the last minute were refused.`],
    [used > MEMORY_SHARE, 'wrong', `${share(used)} of the memory is in use.`],
    [denied(now).length > 0, 'doubtful', `${denied(now).length} inputs are on the crash denylist.`],
  ];
  const active = notes.filter(([holds]) => holds).map(([, tone, words]) => [tone, words]);
  if (active.length) return active;
  return [['good', now.workers_wanted ? `No problems: ${ready} of ${now.workers_wanted} workers are ready.` : 'This process runs without workers and records no history.']];
}

/** The sum of a curve's last minute. */
const lastMinute = ({ history }, name) => sum(history.curves[name].slice(-RECENT_S / history.every_s).map((value) => ({ value })), 'value');

function showNotes(notes) {
  const words = JSON.stringify(notes);
  // Screen readers announce changes only.
  if ($('notes').dataset.words === words) return;
  $('notes').dataset.words = words;
  $('notes').replaceChildren(...notes.map(([tone, text]) => made('li', text, tone)));
}

function showTiles(now) {
  const { curves, every_s: everyS } = now.history;
  const points = 600 / everyS;
  for (const tile of TILES) {
    let box = $(`tile-${tile.curve}`);
    if (!box) { box = newTile(tile); $('tiles').append(box); }
    box.hidden = Boolean(tile.gpu) && !now.gpus.length;
    const values = curves[tile.curve];
    const known = values.filter((value) => value !== null);
    const [current, most] = [values.findLast((value) => value !== null) ?? null, known.length ? Math.max(...known) : null];
    const top = tile.top?.(now) ?? 0;
    put(box.querySelector('.now'), tile.format(current));
    put(box.querySelector('.most'), `max ${tile.format(most)}${top ? `, of ${tile.format(top)}` : ''}`);
    box.classList.toggle('bad', Boolean(tile.bad && most));
    draw(box.querySelector('svg'), values, points, Math.max(top, most ?? 0), `${tile.title}, last 10 minutes: now ${tile.format(current)}, max ${tile.format(most)}`);
  }
}

function newTile(tile) {
  const box = made('article', '', 'tile');
  box.id = `tile-${tile.curve}`;
  box.append(made('h3', tile.title), made('p', '', 'now'), document.createElementNS('http://www.w3.org/2000/svg', 'svg'), made('p', '', 'most'));
  return box;
}

const TONES = { ready: 'good', booting: 'doubtful', draining: 'doubtful' };

function showWorkers(now) {
  const columns = [
    { title: 'Slot', kind: 'number', cell: (worker) => worker.slot },
    { title: 'Process', kind: 'number', cell: (worker) => worker.pid ?? '–' },
    { title: 'State', cell: (worker) => made('span', worker.state, `pill ${TONES[worker.state]}`) },
    { title: 'Ready for', kind: 'number', cell: (worker) => duration(worker.ready_s_ago) },
    { title: 'Requests', kind: 'number', cell: (worker) => number(worker.requests) },
    { title: 'In flight', kind: 'number', cell: (worker) => worker.in_flight },
    { title: 'Memory', kind: 'number', cell: memoryOf },
    { title: 'Replacement reason', cell: replacedFor },
  ];
  if (now.gpus.length) {
    columns.splice(7, 0, { title: 'GPU memory', kind: 'number', cell: (worker) => `${bytes(worker.gpu_bytes)} of GPU ${worker.card}` });
  }
  show($('workers'), 'Workers', columns, now.workers, (worker) => `${worker.slot} ${worker.pid}`, 'No workers.');
  showList($('totals'), [
    ['Replaced', counts(now.recycles, 'none yet')],
    ['Could not start', now.boot_failures.ever ? `${number(now.boot_failures.ever)}, now ${number(now.boot_failures.in_a_row)} in a row` : 'none yet'],
    ['Requests', counts(now.counts.requests_by_adapter, 'none yet')],
    ['Images', `${number(now.counts.images)} read, ${number(now.counts.cache_hits)} from the cache, ${number(now.counts.lines)} lines`],
    ['Failures', counts(now.counts.failures, 'none yet')],
    ['Refused', counts(now.counts.refused, 'none yet')],
    ...now.gpus.map((gpu) => [`GPU ${gpu.gpu}`, `${bytes(gpu.used_bytes)} of ${bytes(gpu.total_bytes)} in use, busy ${share(gpu.busy_ratio)}`]),
  ]);
}

function memoryOf(worker) {
  if (!worker.rss_limit_bytes) return bytes(worker.rss_bytes);
  const cell = made('span', `${bytes(worker.rss_bytes)} of ${bytes(worker.rss_limit_bytes)} `);
  const meter = document.createElement('meter');
  Object.assign(meter, { max: worker.rss_limit_bytes, value: worker.rss_bytes, high: worker.rss_limit_bytes * 0.9 });
  meter.setAttribute('aria-hidden', 'true');
  cell.append(meter);
  return cell;
}

const replacedFor = (worker) => (worker.reason ? `${worker.reason}, for ${duration(worker.wanted_s_ago)}` : '');

function showErrors(now) {
  const columns = [
    { title: 'When', cell: (error) => ago(now, error.when_s) },
    { title: 'Fault', cell: (error) => made('span', error.fault, `pill ${{ service: 'wrong', refused: 'doubtful' }[error.fault] ?? ''}`) },
    { title: 'Code', kind: 'code', cell: (error) => error.code },
    { title: 'Status', kind: 'number', cell: (error) => error.status || '–' },
    { title: 'Route', kind: 'code', cell: (error) => error.route || '–' },
    { title: 'Adapter', cell: (error) => error.adapter },
    { title: 'Request', kind: 'code', cell: (error) => error.id },
    { title: 'Worker', kind: 'number', cell: (error) => error.slot },
  ];
  const errors = now.errors.filter((error) => !fault || error.fault === fault).slice(0, ROWS);
  show($('errors'), 'Last failures', columns, errors, (error) => `${error.when_s} ${error.code} ${error.id}`, 'None recorded.');
}

const denied = (now) => [
  ...now.denylist.images.map((entry) => ({ ...entry, kind: 'image' })),
  ...now.denylist.requests.map((entry) => ({ ...entry, kind: 'request' })),
];

function showDenied(now) {
  const columns = [
    { title: 'Hash', kind: 'code', cell: (entry) => entry.hash },
    { title: 'Kind', cell: (entry) => entry.kind },
    { title: 'Cause', cell: (entry) => entry.cause },
    { title: 'Crashes', kind: 'number', cell: (entry) => entry.crashes },
    { title: 'Last', cell: (entry) => ago(now, entry.when_s) },
    { title: 'Denied', cell: (entry) => (entry.is_refused ? `for ${duration(entry.left_s)}` : 'not yet') },
    { title: 'Allow again', cell: clearButton },
  ];
  show($('denied'), 'Crash denylist', columns, denied(now), (entry) => `${entry.kind} ${entry.hash}`, 'None.');
  $('clear-all').hidden = !denied(now).length;
}

function clearButton(entry) {
  const button = made('button', 'Clear');
  button.type = 'button';
  button.dataset.hash = entry.hash;
  button.setAttribute('aria-label', `Clear ${entry.kind} ${entry.hash}`);
  return button;
}

function showDocuments(now) {
  $('documents-section').hidden = !now.documents;
  if (!now.documents) return;
  const { count, bytes: taken, limit_bytes: limit, disk_free_bytes: free } = now.documents;
  showList($('documents'), [['Stored', `${number(count)}, ${bytes(taken)} of ${bytes(limit)}`], ['Free disk space', bytes(free)]]);
}

function showList(list, items) {
  const words = JSON.stringify(items);
  if (list.dataset.words === words) return;
  list.dataset.words = words;
  list.replaceChildren(...items.flatMap(([name, value]) => [made('dt', name), made('dd', value)]));
}

function made(name, text, kind = '') {
  const element = document.createElement(name);
  if (kind) element.className = kind;
  element.textContent = text;
  return element;
}

// Actions

async function clear(hash) {
  try {
    const response = await fetch(hash ? `ops/denylist/${hash}` : 'ops/denylist', { method: 'DELETE' });
    if (!response.ok) throw await problemOf(response);
    const { forgotten } = await response.json();
    put($('cleared'), `${forgotten} cleared.`);
  } catch (error) {
    put($('cleared'), `Nothing was cleared. ${error.message}`);
  }
  await refresh();
  if (!document.activeElement || document.activeElement === document.body) $('denied-title').focus();
}

/** The first press asks for confirmation. */
function clearAll() {
  const button = $('clear-all');
  if (button.classList.contains('sure')) {
    forget(button);
    clear('');
    return;
  }
  button.classList.add('sure');
  button.textContent = `Clear all ${denied(last).length}? Press again`;
  setTimeout(() => forget(button), SURE_MS);
}

function forget(button) {
  button.classList.remove('sure');
  button.textContent = 'Clear all';
}

function pause() {
  paused = !paused;
  $('pause').setAttribute('aria-pressed', String(paused));
  $('pause').textContent = paused ? 'Paused' : 'Pause';
  refresh();
}

function choose(event) {
  const { fault: chosen } = event.target.dataset;
  if (chosen === undefined) return;
  fault = chosen;
  for (const button of $('faults').children) button.setAttribute('aria-pressed', String(button.dataset.fault === chosen));
  if (last) showErrors(last);
}

$('pause').addEventListener('click', pause);
$('faults').addEventListener('click', choose);
$('clear-all').addEventListener('click', clearAll);
$('denied').addEventListener('click', (event) => event.target.dataset.hash && clear(event.target.dataset.hash));
$('denied-title').tabIndex = -1;
document.addEventListener('visibilitychange', refresh);
refresh();
