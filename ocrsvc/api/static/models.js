// Shows the available models and languages.

import { t } from './words.js';

let listed = { models: [] };

/** Fetch the service's models and fill a form's choices. */
export async function findModels(form) {
  try {
    const answer = await fetch(new URL('v1/ocr/models', document.baseURI));
    if (answer.ok) listed = await answer.json();
  } catch { /* without a list nothing can be chosen */ }
  showModels(form);
}

/** Show the choices in the page's language; a list with one choice stays hidden. */
export function showModels(form) {
  const available = listed.models.filter((one) => one.state === 'AVAILABLE');
  const titles = new Map(available.map((one) => [one.name, one.title ? `${one.title} (${one.name})` : one.name]));
  const languages = [...new Set(available.flatMap((one) => one.languages))];
  fill(form.elements.model, [...titles], titles.size > 1);
  const named = languages.map((tag) => [tag, nameOf(tag)]).sort(([, a], [, b]) => a.localeCompare(b));
  fill(form.elements.lang, [['auto', t('by_line')], ...named], languages.length > 1);
}

function fill(select, choices, isShown) {
  const chosen = select.value;
  const options = [['', t('automatic')], ...choices];
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  select.value = options.some(([value]) => value === chosen) ? chosen : '';
  select.closest('label').hidden = !isShown;
}

function nameOf(tag) {
  try { return new Intl.DisplayNames(document.documentElement.lang, { type: 'language' }).of(tag); } catch { return tag; }
}
