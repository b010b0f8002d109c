// Shows tables as tables, and writes them as CSV.

import { t } from './words.js';

/** The tables of a page, each with a button that copies it (`data-table` is its index). */
export function drawTables(tables) {
  const all = document.createDocumentFragment();
  tables.forEach((table, index) => {
    const [bar, title, button] = ['div', 'h3', 'button'].map((name) => document.createElement(name));
    bar.className = 'bar';
    title.textContent = t('table', index + 1, table.rows, table.columns);
    button.type = 'button';
    button.dataset.table = index;
    button.textContent = t('copy_csv');
    bar.append(title, button);
    all.append(bar, drawTable(table));
  });
  return all;
}

function drawTable({ rows, cells }) {
  const grid = document.createElement('table');
  const lines = Array.from({ length: rows }, () => grid.insertRow());
  for (const { row, row_span, column_span, text } of cells) {
    const cell = lines[row].insertCell();
    cell.rowSpan = row_span;
    cell.colSpan = column_span;
    cell.textContent = text;
  }
  const frame = document.createElement('div');
  frame.className = 'table';
  frame.tabIndex = 0;
  frame.append(grid);
  return frame;
}

/** Tables as CSV (RFC 4180), an empty line between two; a cell that spans several has its text in the first. */
export const csvOf = (tables) => tables.map(linesOf).join('\r\n');

function linesOf({ rows, columns, cells }) {
  const grid = Array.from({ length: rows }, () => Array(columns).fill(''));
  for (const { row, column, text } of cells) grid[row][column] = /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  return grid.map((line) => `${line.join()}\r\n`).join('');
}
