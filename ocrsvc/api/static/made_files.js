// Lets the service create other files of a document from the pages that were read.

import { ask } from './ask.js';
import { save, stem } from './keep.js';
import { t, titleOf } from './words.js';

let making = null;

/** The answer without failed pages, which only JSON can report. */
export const wholePages = (answer) => ({ ...answer, pages: answer.pages.filter((page) => !page.error) });

/** The option `pages` without pages that failed or were not read. */
export function pagesOf({ answer, state }) {
  if (state === 'done' && !answer.pages.some((page) => page.error)) return {};
  const parts = [];
  for (const { page } of wholePages(answer).pages) {
    if (parts.at(-1)?.at(-1) === page - 1) parts.at(-1)[1] = page;
    else parts.push([page]);
  }
  return { pages: parts.map((part) => part.join('-')).join() };
}

/** Let the service create a file of the document, and save it; pressing the button again cancels. */
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
