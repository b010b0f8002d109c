// Has the service make other files of a document, of the pages that were read.

import { ask } from './ask.js';
import { save, stem } from './keep.js';
import { t, titleOf } from './words.js';

let making = null;

/** The answer without the pages that failed, for which no form but JSON has a place. */
export const wholePages = (answer) => ({ ...answer, pages: answer.pages.filter((page) => !page.error) });

/** The option that leaves out pages that were not read: those that failed, and those after the last one. */
export function pagesOf({ answer, state }) {
  if (state === 'done' && !answer.pages.some((page) => page.error)) return {};
  const parts = [];
  for (const { page } of wholePages(answer).pages) {
    if (parts.at(-1)?.at(-1) === page - 1) parts.at(-1)[1] = page;
    else parts.push([page]);
  }
  return { pages: parts.map((part) => part.join('-')).join() };
}

/** Have the service make another file of the document and save it; the button that asked for it stops it, too. */
export async function makeFile(item, button, say) {
  if (making) return making.abort();
  const { file, name, options } = item;
  const { file: format, suffix, type } = button.dataset;
  const words = button.textContent;
  making = new AbortController();
  button.textContent = t('making');
  button.setAttribute('aria-busy', 'true');
  try {
    const asked = { ...options, ...pagesOf(item), format };
    save(`${stem(name)}${suffix}`, await ask(file, asked, making.signal, () => {}, { isFile: true }), type);
    say(t('saved'));
  } catch (error) {
    const { code, title } = error.members ?? {};
    say(error.name === 'AbortError' ? t('cancelled') : titleOf(code, title) ?? t('not_made'));
  }
  making = null;
  button.textContent = words;
  return button.removeAttribute('aria-busy');
}
