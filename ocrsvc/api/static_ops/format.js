// Formats numbers, sizes and times.

/** A number with three significant digits; a dash for null. */
export function number(value) {
  if (value === null || value === undefined) return '–';
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString('en');
  return String(Number(value.toPrecision(3)));
}

/** Bytes in powers of 1024. */
export function bytes(value) {
  if (value === null || value === undefined) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${number(value)} ${units[unit]}`;
}

/** Seconds, below one as milliseconds. */
export function seconds(value) {
  if (value === null || value === undefined) return '–';
  return value < 1 ? `${number(value * 1000)} ms` : `${number(value)} s`;
}

export const share = (value) => (value === null || value === undefined ? '–' : `${Math.round(value * 100)} %`);

/** A duration in its two largest units. */
export function duration(value) {
  if (value === null || value === undefined) return '–';
  const whole = Math.max(0, Math.round(value));
  const parts = [[Math.floor(whole / 86400), 'd'], [Math.floor(whole / 3600) % 24, 'h'], [Math.floor(whole / 60) % 60, 'min'], [whole % 60, 's']];
  const first = parts.findIndex(([count]) => count > 0);
  if (first < 0) return '0 s';
  return parts.slice(first, first + 2).filter(([count]) => count > 0).map(([count, unit]) => `${count} ${unit}`).join(' ');
}

/** Names with counts above 0; `none` if there are none. */
export function counts(values, none) {
  const parts = Object.entries(values).filter(([, count]) => count > 0).map(([name, count]) => `${name} ${number(count)}`);
  return parts.length ? parts.join(', ') : none;
}
