// Frames the words of the highlighted line, and finds the word under the pointer.

const SVG = 'http://www.w3.org/2000/svg';
const label = document.getElementById('word');

let group = null;
let words = [];
let chosen = -1;

/** Frame the words of a line, if they are not framed yet. */
export function drawWords(svg, line) {
  if (!svg || !line?.words) return forgetWords();
  if (group && words === line.words) return undefined;
  forgetWords();
  words = line.words;
  group = document.createElementNS(SVG, 'g');
  group.setAttribute('class', 'words');
  for (const word of words) {
    const polygon = document.createElementNS(SVG, 'polygon');
    polygon.setAttribute('points', word.box.map((point) => point.join()).join(' '));
    group.append(polygon);
  }
  return svg.append(group);
}

export function forgetWords() {
  group?.remove();
  [group, words, chosen] = [null, [], -1];
  label.hidden = true;
}

/** Show the word under the pointer: its box, its text and its confidence. */
export function pointAt(event) {
  if (!group) return;
  const matrix = group.ownerSVGElement.getScreenCTM();
  const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix.inverse());
  choose(words.findIndex((word) => isInside(point, word.box)));
}

/** Show the next or previous word; return its text for screen readers, or nothing at the end. */
export function step(by) {
  const next = chosen < 0 && by < 0 ? words.length - 1 : chosen + by;
  if (!words[next]) return null;
  choose(next);
  return label.textContent;
}

function choose(index) {
  if (index === chosen) return;
  group.children[chosen]?.classList.remove('at');
  group.children[index]?.classList.add('at');
  chosen = index;
  label.hidden = index < 0;
  if (index < 0) return;
  const { text, confidence } = words[index];
  const share = document.createElement('small');
  share.textContent = ` ${Math.floor(confidence * 100)} %`;
  label.replaceChildren(text, share);
  place(group.children[index].getBoundingClientRect());
}

/** Place the label above the word, or below it without room. */
function place(box) {
  const { width, height } = label.getBoundingClientRect();
  const left = Math.min(Math.max(4, (box.left + box.right - width) / 2), innerWidth - width - 4);
  label.style.left = `${left}px`;
  label.style.top = `${box.top > height + 8 ? box.top - height - 5 : box.bottom + 5}px`;
}

/** Whether a point is inside a box. */
function isInside(point, box) {
  const signs = box.map(([x, y], at) => {
    const [nextX, nextY] = box[(at + 1) % 4];
    return Math.sign((nextX - x) * (point.y - y) - (nextY - y) * (point.x - x));
  });
  return signs.every((sign) => sign >= 0) || signs.every((sign) => sign <= 0);
}
