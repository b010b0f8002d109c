// How do answers look as TSV, hOCR and ALTO? To the letter as the service's own formats/ writes them.

const half = (number) => Math.floor(number + 0.5);
const within = (number, most) => Math.min(Math.max(half(number), 0), most);
const REFERENCES = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;', '\t': '&#9;', '\n': '&#10;', '\r': '&#13;' };
const NOT_IN_XML = /[^\t\n\r\u0020-\uD7FF\uE000-\uFFFD\u{10000}-\u{10FFFF}]/gu;
const markup = (text) => text.replace(NOT_IN_XML, '\uFFFD').replace(/[&<>"'\t\n\r]/g, (sign) => REFERENCES[sign]);

/** Each line in whole pixels: its frame, its corners, and its turn if it is not upright. */
function placed(page) {
  return (page.lines ?? []).map(({ text, confidence, box }) => {
    const [xs, ys] = [box.map(([x]) => x), box.map(([, y]) => y)];
    const [left, right] = [Math.min(...xs), Math.max(...xs)].map((x) => within(x, page.width));
    const [top, bottom] = [Math.min(...ys), Math.max(...ys)].map((y) => within(y, page.height));
    const corners = box.map((point) => point.map(half));
    const upright = String(corners) === String([left, top, right, top, right, bottom, left, bottom]);
    const turn = half((Math.atan2(ys[0] - ys[1], xs[1] - xs[0]) * 180) / Math.PI);
    return { text, confidence, left, top, right, bottom, corners, upright, angle: (turn + 360) % 360 };
  });
}

const COLUMNS = ['level', 'page_num', 'block_num', 'par_num', 'line_num', 'word_num', 'left', 'top', 'width', 'height', 'conf', 'text'];

function tsv({ pages }) {
  const rows = [COLUMNS];
  for (const page of pages) {
    rows.push([1, page.page, 0, 0, 0, 0, 0, 0, page.width, page.height, -1, '']);
    placed(page).forEach((line, at) => rows.push([4, page.page, 0, 0, at + 1, 0, line.left, line.top, line.right - line.left,
      line.bottom - line.top, (line.confidence * 100).toFixed(2), line.text.replace(/[\t-\r\x1c-\x1e\x85\u2028\u2029]+/g, ' ')]));
  }
  return rows.map((row) => `${row.join('\t')}\n`).join('');
}

function hocr({ pages, engine }) {
  const line = (page) => (one, at) => {
    const [id, frame] = [`${page.page}_${at + 1}`, `bbox ${one.left} ${one.top} ${one.right} ${one.bottom}`];
    const turned = one.upright ? '' : `; poly ${one.corners.flat().join(' ')}${one.angle ? `; textangle ${one.angle}` : ''}`;
    return `<span class="ocr_line" id="line_${id}" title="${frame}${turned}"><span class="ocrx_word" id="word_${id}" title="${frame}; x_wconf ${half(one.confidence * 100)}">${markup(one.text)}</span></span><br/>\n`;
  };
  const body = pages.map((page) => `<div class="ocr_page" id="page_${page.page}" title="bbox 0 0 ${page.width} ${page.height}; ppageno ${page.page - 1}">\n${placed(page).map(line(page)).join('')}</div>\n`);
  return `<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml">
<head>
<title>OCR</title>
<meta charset="utf-8"/>
<meta name="ocr-system" content="${markup(`ocrsvc (${engine.name} ${engine.model} ${engine.version})`)}"/>
<meta name="ocr-capabilities" content="ocr_page ocr_line ocrx_word"/>
<meta name="ocr-number-of-pages" content="${pages.length}"/>
</head>
<body>
${body.join('')}</body>
</html>
`;
}

function alto({ pages, engine }) {
  const place = ({ left, top, right, bottom }) => `HPOS="${left}" VPOS="${top}" WIDTH="${right - left}" HEIGHT="${bottom - top}"`;
  const line = (page) => (one, at) => {
    const [id, where] = [`${page.page}_${at + 1}`, place(one)];
    const shape = one.upright ? '' : `<Shape><Polygon POINTS="${one.corners.map((point) => point.join()).join(' ')}"/></Shape>`;
    return `<TextLine ID="line_${id}" ${where}>${shape}<String ID="string_${id}" ${where} WC="${one.confidence.toFixed(4)}" CONTENT="${markup(one.text)}"/></TextLine>\n`;
  };
  const body = pages.map((page) => {
    const where = place({ left: 0, top: 0, right: page.width, bottom: page.height });
    const lines = placed(page).map(line(page)).join('');
    const block = lines && `<TextBlock ID="block_${page.page}" ${where}>\n${lines}</TextBlock>\n`;
    return `<Page ID="page_${page.page}" PHYSICAL_IMG_NR="${page.page}" WIDTH="${page.width}" HEIGHT="${page.height}">\n<PrintSpace ${where}>\n${block}</PrintSpace>\n</Page>\n`;
  });
  return `<?xml version="1.0" encoding="UTF-8"?>
<alto xmlns="http://www.loc.gov/standards/alto/ns-v4#" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:schemaLocation="http://www.loc.gov/standards/alto/ns-v4# http://www.loc.gov/standards/alto/v4/alto-4-4.xsd">
<Description>
<MeasurementUnit>pixel</MeasurementUnit>
<Processing ID="ocr"><processingSoftware><softwareName>ocrsvc</softwareName><applicationDescription>${markup(`${engine.name} ${engine.model} ${engine.version}`)}</applicationDescription></processingSoftware></Processing>
</Description>
<Layout>
${body.join('')}</Layout>
</alto>
`;
}

/** By the name of its tab: what writes an answer, the end of its file's name, and its type. */
export const FORMATS = {
  tsv: { write: tsv, suffix: '.tsv', type: 'text/tab-separated-values;charset=utf-8' },
  hocr: { write: hocr, suffix: '.hocr', type: 'text/vnd.hocr+html' },
  alto: { write: alto, suffix: '.alto.xml', type: 'application/alto+xml' },
};
