// Highlights the line under the pointer, in the list and on the page, and its words.

import { showWords } from './sheet.js';
import { forgetWords, pointAt, step } from './word_boxes.js';

const panel = document.getElementById('panel');
const frame = document.querySelector('.frame');
const sheet = document.querySelector('.sheet');

/**
 * Connect lines with their boxes.
 *
 * @param pick called with the index of a clicked line
 * @param say announces a text, also to screen readers
 */
export function open(pick, say) {
  tieTogether(sheet, pick);
  tieTogether(panel, pick);
  panel.addEventListener('keydown', (event) => { moveLine(event); moveWord(event, say); });
  sheet.addEventListener('pointermove', pointAt);
  frame.addEventListener('scroll', forgetWords);
}

/** A line and its box react alike to hovering, focus and clicks. */
function tieTogether(root, pick) {
  const indexOf = (event) => event.target.closest?.('[data-i]')?.dataset.i;
  root.addEventListener('pointerover', (event) => mark(indexOf(event), root));
  root.addEventListener('pointerleave', () => mark(undefined, root));
  root.addEventListener('focusin', (event) => mark(indexOf(event), root));
  root.addEventListener('click', (event) => indexOf(event) !== undefined && pick(indexOf(event)));
}

export function mark(index, from) {
  for (const element of document.querySelectorAll('.on')) element.classList.remove('on');
  if (index === undefined) return forgetWords();
  showWords(index);
  for (const element of document.querySelectorAll(`[data-i="${index}"]`)) element.classList.add('on');
  const other = from === sheet ? panel : frame;
  return bringIntoView(other, other.querySelector(`[data-i="${index}"]`));
}

/** Scroll an element into view inside its container, without scrolling the page. */
function bringIntoView(outer, inner) {
  if (!inner) return;
  const [seen, wanted] = [outer.getBoundingClientRect(), inner.getBoundingClientRect()];
  const off = (low, high, from, to) => (low < from ? low - from - 8 : high > to ? high - to + 8 : 0);
  outer.scrollBy(off(wanted.left, wanted.right, seen.left, seen.right), off(wanted.top, wanted.bottom, seen.top, seen.bottom));
}

export function focusLine(button) {
  for (const other of panel.querySelectorAll('button[data-i]')) other.tabIndex = -1;
  button.tabIndex = 0;
  button.focus({ preventScroll: true });
  if (panel.scrollHeight > panel.clientHeight) bringIntoView(panel, button);
  else button.scrollIntoView({ block: 'nearest' });
}

function moveLine(event) {
  const buttons = [...panel.querySelectorAll('button[data-i]')];
  const at = buttons.indexOf(event.target);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
  if (at < 0 || !buttons[to]) return;
  event.preventDefault();
  focusLine(buttons[to]);
}

/** The arrow keys show a line's words one by one. */
function moveWord(event, say) {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const words = by && event.target.dataset.i !== undefined && step(by);
  if (!words) return;
  event.preventDefault();
  say(words, { quietly: true });
}
