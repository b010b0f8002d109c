// Curves of the last ten minutes, as SVG.

const SPACE = 'http://www.w3.org/2000/svg';
const [WIDTH, HEIGHT] = [120, 30];

/** The paths of a curve, one per run of numbers, aligned to the right. */
export function pieces(values, points, most) {
  const step = WIDTH / (points - 1);
  const left = WIDTH - (values.length - 1) * step;
  const runs = [];
  let piece = [];
  values.forEach((value, index) => {
    if (value === null) { runs.push(piece); piece = []; return; }
    piece.push([left + index * step, HEIGHT - (most ? value / most : 0) * HEIGHT]);
  });
  return [...runs, piece].filter((run) => run.length);
}

/**
 * Replace the curve in an element.
 *
 * @param svg the element
 * @param values numbers or null, latest last
 * @param points number of points in ten minutes
 * @param top the value at the upper edge; 0 means the largest value
 * @param words description for screen readers
 */
export function draw(svg, values, points, top, words) {
  const most = top || Math.max(0, ...values.filter((value) => value !== null));
  const shapes = [element('line', { class: 'base', x1: 0, x2: WIDTH, y1: HEIGHT, y2: HEIGHT })];
  for (const run of pieces(values, points, most)) {
    // A single point would be invisible.
    const line = run.length > 1 ? run : [[run[0][0] - 1, run[0][1]], run[0]];
    const path = line.map(([x, y], index) => `${index ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`).join('');
    shapes.push(element('path', { class: 'area', d: `${path}L${line.at(-1)[0].toFixed(1)} ${HEIGHT}L${line[0][0].toFixed(1)} ${HEIGHT}Z` }));
    shapes.push(element('path', { class: 'line', d: path }));
  }
  svg.setAttribute('viewBox', `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute('preserveAspectRatio', 'none');
  svg.setAttribute('role', 'img');
  svg.setAttribute('aria-label', words);
  svg.replaceChildren(...shapes);
}

function element(name, attributes) {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
