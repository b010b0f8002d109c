// The API keys and their usage.

import { duration, number } from './format.js';
import { show } from './tables.js';

const TONES = { valid: 'good', expired: 'doubtful', revoked: '' };
const NEAR = 0.9;

const COLUMNS = [
  { title: 'Name', cell: (key) => key.name },
  { title: 'State', cell: stateOf },
  { title: 'Access', cell: (key) => [key.scopes.join(', '), key.adapters && `of ${key.adapters.join(', ')}`].filter(Boolean).join(' ') },
  { title: 'Pages today', kind: 'number', cell: (key) => used(key.usage.pages_today, key.limits.pages_a_day) },
  { title: 'Pages this month', kind: 'number', cell: (key) => used(key.usage.pages_this_month, key.limits.pages_a_month) },
  { title: 'In flight', kind: 'number', cell: (key) => used(key.usage.requests_under_way, key.limits.concurrency) },
  { title: 'Requests / s', kind: 'number', cell: (key) => (key.limits.requests_per_s ? `at most ${number(key.limits.requests_per_s)}` : '') },
  { title: 'Expires', cell: (key) => (key.expires_at ? endOf(key.expires_at) : '') },
];

/** Fetch and show the keys; the section is hidden if the service needs none. Throws errors of fetch. */
export async function showKeys(section, place) {
  const response = await fetch('ops/keys', { signal: AbortSignal.timeout(10_000) });
  const { keys, detail } = await response.json();
  section.hidden = keys === null;
  if (keys !== null) show(place, 'API keys', COLUMNS, keys ?? [], (key) => key.name, response.ok ? 'No keys yet.' : detail);
}

function stateOf(key) {
  const pill = document.createElement('span');
  pill.className = `pill ${TONES[key.state]}`;
  pill.textContent = key.state;
  return pill;
}

function used(count, most) {
  if (most === null || most === undefined) return number(count);
  const cell = document.createElement('span');
  cell.textContent = `${number(count)} of ${number(most)} `;
  const meter = document.createElement('meter');
  Object.assign(meter, { max: most, value: count, high: most * NEAR });
  meter.setAttribute('aria-hidden', 'true');
  cell.append(meter);
  return cell;
}

function endOf(whenS) {
  const left = whenS - Date.now() / 1000;
  return left > 0 ? `in ${duration(left)}` : `${duration(-left)} ago`;
}
