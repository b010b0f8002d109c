// Tables that are updated in place, so that focus and selection stay.

/**
 * Show rows in an element, or a text if there are none.
 *
 * @param place the element
 * @param title label for screen readers
 * @param columns `{title, kind, cell}` each; `cell` returns the text or element of an item
 * @param items the items
 * @param keyOf returns an item's unique key
 * @param none the text without items
 */
export function show(place, title, columns, items, keyOf, none) {
  if (!items.length) {
    if (!place.querySelector('.empty')) place.replaceChildren(paragraph());
    put(place.firstChild, none);
    return;
  }
  let table = place.querySelector('table');
  if (!table || table.rows[0].cells.length !== columns.length) {
    table = empty(title, columns);
    place.replaceChildren(table);
  }
  const [body] = table.tBodies;
  const rows = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  const wanted = items.map((item) => {
    const key = String(keyOf(item));
    const row = rows.get(key) ?? made(key, columns);
    columns.forEach((column, index) => put(row.cells[index], column.cell(item)));
    return row;
  });
  for (const row of [...body.rows]) if (!wanted.includes(row)) row.remove();
  wanted.forEach((row, index) => { if (body.rows[index] !== row) body.insertBefore(row, body.rows[index] ?? null); });
}

/** Set a cell's content if it has changed. */
export function put(cell, content) {
  if (content instanceof Element) {
    if (!cell.firstElementChild?.isEqualNode(content)) cell.replaceChildren(content);
  } else if (cell.textContent !== String(content)) cell.textContent = content;
}

function empty(title, columns) {
  const table = document.createElement('table');
  table.setAttribute('role', 'table');
  table.setAttribute('aria-label', title);
  const head = table.createTHead().insertRow();
  head.setAttribute('role', 'row');
  for (const column of columns) {
    const cell = document.createElement('th');
    cell.scope = 'col';
    cell.setAttribute('role', 'columnheader');
    cell.className = column.kind ?? '';
    cell.textContent = column.title;
    head.append(cell);
  }
  table.createTBody();
  return table;
}

/** Explicit roles, because narrow screens display rows as blocks. */
function made(key, columns) {
  const row = document.createElement('tr');
  row.dataset.key = key;
  row.setAttribute('role', 'row');
  for (const column of columns) {
    const cell = row.insertCell();
    cell.setAttribute('role', 'cell');
    cell.className = column.kind ?? '';
    cell.dataset.label = column.title;
  }
  return row;
}

function paragraph() {
  const made = document.createElement('p');
  made.className = 'empty';
  return made;
}
