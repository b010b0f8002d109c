// Lets the service create other files of a document from the pages that were read.

import { ask } from './ask.js';
import { resultOf } from './jobs.js';
import { save, stem } from './keep.js';
import { t, titleOf } from './words.js';

let making = null;

/** The answer without failed pages, which only JSON can report. */
export const wholePages = (answer) => ({ ...answer, pages: answer.pages.filter((page) => !page.error) });

/** The option `pages` without pages that failed or were not read. */
function pagesOf({ answer, state }) {
  if (state === 'done' && !answer.pages.some((page) => page.error)) return {};
  const parts = [];
  for (const { page } of wholePages(answer).pages) {
    if (parts.at(-1)?.at(-1) === page - 1) parts.at(-1)[1] = page;
    else parts.push([page]);
  }
  return { pages: parts.map((part) => part.join('-')).join() };
}

/** A file of a document in an output format, as 'text' or 'blob'. */
export function fileOf(item, format, as, signal) {
  if (item.job) return resultOf(item.job, format, as, signal);
  return ask(item.file, { ...item.options, ...pagesOf(item), format }, signal, () => {}, { as });
}

/** Let the service create a file of the document, and save it; pressing the button again cancels. */
export async function makeFile(item, button, say) {
  if (making) return making.abort();
  const { file: format, suffix, type } = button.dataset;
  const words = button.textContent;
  making = new AbortController();
  button.textContent = t('making');
  button.setAttribute('aria-busy', 'true');
  try {
    save(`${stem(item.name)}${suffix}`, await fileOf(item, format, 'blob', making.signal), type);
    say(t('saved'));
  } catch (error) {
    const { code, title } = error.members ?? {};
    say(error.name === 'AbortError' ? t('cancelled') : titleOf(code, title) ?? t('not_made'));
  }
  making = null;
  button.textContent = words;
  return button.removeAttribute('aria-busy');
}
