// The page's texts in each language.

const WORDS = {
  en: {
    tagline: 'Text from images', language: 'Language', add: 'Add images', lead: 'Drop images or PDFs here, or paste them',
    lead_touch: 'Photograph a page, or choose one',
    choose: 'Choose files', photo: 'Take a photo', hint: 'or drop or paste them anywhere',
    formats: 'JPEG, PNG, WebP, HEIC, AVIF, BMP, GIF, TIFF, PNM and PDF.',
    options: 'Options', rotate: 'Rotate', rotate_0: 'no rotation',
    max_side: 'Longest side, pixels', min_confidence: 'Minimum confidence',
    text_language: 'Language of the text', by_line: 'detect per line', model: 'Model',
    line: 'A single line of text', upright: 'Upright boxes', find_tables: 'Tables', find_codes: 'Bar codes', find_regions: 'Regions of the layout',
    text_layer: 'Text of PDF pages', layer_ignore: 'read the picture', layer_auto: 'use their own text if sound', layer_merge: 'own text, and read the rest', layer_only: 'own text only',
    mask: 'Mask in the result', mask_id: 'ID numbers', mask_phone: 'phone numbers', mask_card: 'bank cards', mask_mail: 'e-mail addresses', again: 'Read again', automatic: 'automatic', auto: 'auto',
    images: 'Images', progress: 'Progress of all images', cancel: 'Cancel', copy_all: 'Copy all',
    text_all: 'Save all text', json_all: 'Save all JSON', clear: 'Clear', picture: 'Picture', turn_left: 'Rotate left',
    turn_right: 'Rotate right', smaller: 'Smaller', larger: 'Larger', boxes: 'Show boxes',
    save_picture: 'Save the picture with its boxes', result: 'Result', lines: 'Lines', text: 'Text', copy: 'Copy',
    save: 'Save', retry: 'Try again', choose_other: 'Choose another file', change_options: 'Change the options',
    tables: 'Tables', no_tables: 'No tables were found.', tables_off: 'Tables are switched off in the options.', copy_csv: 'Copy as CSV',
    copied: 'Copied', not_copied: 'The browser did not allow copying', pasted: 'image',
    waiting: 'waiting', reading: 'reading', cancelled: 'cancelled', failed: 'failed', no_lines: 'No text was found.',
    confidence: 'confidence', not_shown: 'This browser cannot show the file. The boxes are still correct.',
    offline_title: 'The service cannot be reached',
    offline_detail: 'The network or the service is down, or the connection was lost.',
    offline_remedy: 'Check the connection, then try again.',
    strange_title: 'Unexpected response',
    strange_detail: (status) => `The service answered ${status} without an explanation.`,
    strange_remedy: 'A proxy may have answered instead of the service. Tell the operator.',
    pages: 'Pages', page_before: 'Previous page', page_after: 'Next page', which_pages: 'Pages of documents', all_pages: 'all, or 1-3,7',
    page_number: 'Page number', make_pdf: 'Searchable PDF', making: 'Creating file… (cancel)', saved: 'Saved', not_made: 'The file could not be created',
    beginning: 'Only the beginning is shown. Copy and Save include everything.',
    reading_page: (page, all) => `reading page ${Math.min(page, all)} of ${all}`,
    pages_read: (count) => (count === 1 ? '1 page' : `${count} pages`),
    sending: (share) => `sending ${share} %`,
    busy: (seconds) => `busy, retry in ${seconds} s`,
    count: (done, all) => (all === 1 ? '1 file' : `${done} of ${all} files`),
    read: (count) => (count === 1 ? '1 line' : `${count} lines`),
    turned: (angle) => `rotated by ${angle}°`,
    masked: (count) => (count === 1 ? '1 part masked' : `${count} parts masked`),
    table: (number, rows, columns) => `Table ${number}: ${rows} × ${columns}`,
    request: (id) => `Request ${id}`,
    remove: (name) => `Remove ${name}`, cancel_one: (name) => `Cancel ${name}`,
    errors: {},
  },
  zh: {
    tagline: '图片文字识别', language: '语言', add: '添加图片', lead: '把图片或 PDF 拖到这里，或直接粘贴',
    lead_touch: '拍照或选择图片',
    choose: '选择文件', photo: '拍照', hint: '也可随处拖放或粘贴',
    formats: '支持 JPEG、PNG、WebP、HEIC、AVIF、BMP、GIF、TIFF、PNM 和 PDF。',
    options: '选项', rotate: '旋转', rotate_0: '不旋转',
    max_side: '最长边（像素）', min_confidence: '最低置信度',
    text_language: '文字语言', by_line: '逐行判断', model: '模型',
    line: '图片只有一行文字', upright: '水平文本框', find_tables: '表格', find_codes: '条形码', find_regions: '版面区域',
    text_layer: 'PDF 自带文字', layer_ignore: '识别图像', layer_auto: '可靠时直接使用', layer_merge: '使用并识别其余部分', layer_only: '仅用自带文字',
    mask: '结果中遮盖', mask_id: '证件号', mask_phone: '电话号码', mask_card: '银行卡号', mask_mail: '邮箱地址', again: '重新识别', automatic: '自动', auto: '自动',
    images: '图片', progress: '全部图片的进度', cancel: '取消', copy_all: '全部复制',
    text_all: '全部存为文本', json_all: '全部存为 JSON', clear: '清空', picture: '图片', turn_left: '向左旋转',
    turn_right: '向右旋转', smaller: '缩小', larger: '放大', boxes: '显示文本框',
    save_picture: '保存带文本框的图片', result: '结果', lines: '逐行', text: '文本', copy: '复制',
    save: '保存', retry: '重试', choose_other: '选择其他文件', change_options: '更改选项',
    tables: '表格', no_tables: '没有找到表格。', tables_off: '选项中已关闭表格。', copy_csv: '复制为 CSV',
    copied: '已复制', not_copied: '浏览器不允许网页复制', pasted: '图片',
    waiting: '等待中', reading: '识别中', cancelled: '已取消', failed: '失败', no_lines: '没有找到文字。',
    confidence: '置信度', not_shown: '浏览器无法显示此文件，但文本框位置准确。',
    offline_title: '无法连接服务',
    offline_detail: '网络或服务中断，或连接断开。',
    offline_remedy: '请检查网络后重试。',
    strange_title: '意外的响应',
    strange_detail: (status) => `服务返回状态码 ${status}，没有说明。`,
    strange_remedy: '响应可能来自代理而不是服务，请告知管理员。',
    pages: '页', page_before: '上一页', page_after: '下一页', which_pages: '文档页码', all_pages: '全部，或 1-3,7',
    page_number: '页码', make_pdf: '可搜索的 PDF', making: '正在生成…（取消）', saved: '已保存', not_made: '无法生成文件',
    beginning: '仅显示开头部分；复制和保存包含全部内容。',
    reading_page: (page, all) => `正在识别第 ${Math.min(page, all)} / ${all} 页`,
    pages_read: (count) => `${count} 页`,
    sending: (share) => `上传 ${share}%`,
    busy: (seconds) => `服务繁忙，${seconds} 秒后重试`,
    count: (done, all) => (all === 1 ? '1 个文件' : `已完成 ${done} / ${all} 个文件`),
    read: (count) => `${count} 行`,
    turned: (angle) => `旋转 ${angle}°`,
    masked: (count) => `已遮盖 ${count} 处`,
    table: (number, rows, columns) => `表格 ${number}：${rows} × ${columns}`,
    request: (id) => `请求编号 ${id}`,
    remove: (name) => `移除 ${name}`, cancel_one: (name) => `取消 ${name}`,
    errors: {
      bad_base64: 'base64 文本无效', bad_option: '选项有误', bad_request: '请求有误', body_timeout: '请求没有及时到达', body_too_large: '请求过大',
      broken_image: '图片已损坏', encrypted_document: '文档需要密码', too_many_pages: '文档页数过多',
      deadline_exceeded: '超过了时限', engine_failed: '引擎未能识别这张图片',
      image_crashes_engine: '这张图片会使引擎崩溃', image_too_large: '图片像素过多', internal: '服务内部错误',
      not_ready: '服务尚未就绪', nothing_sent: '没有收到图片', queue_full: '服务繁忙', too_many_at_once: '并发请求过多',
      request_stops_worker: '这个请求会使服务进程卡死', resources_exhausted: '服务资源不足',
      unknown_job: '没有这个任务', job_failed: '任务失败', unknown_model: '没有这个模型或语言', model_unavailable: '模型暂时无法加载', unsupported_image: '不是本服务能识别的图片',
      url_refused: '不允许获取这个地址', url_unavailable: '无法获取这个地址',
    },
  },
};
const KEY = 'ocrsvc.language';

let language = 'en';

/** The text of a key; functions receive the values. */
export function t(key, ...values) {
  const word = WORDS[language][key];
  return typeof word === 'function' ? word(...values) : word;
}

/** The translated title of a service error by its code, else the service's own. */
export const titleOf = (code, title) => WORDS[language].errors[code] ?? title;

/** The stored language, else the browser's. */
export function preferred() {
  let kept = null;
  try { kept = localStorage.getItem(KEY); } catch { /* storage may be forbidden; then nothing is remembered */ }
  return kept in WORDS ? kept : (navigator.language || '').toLowerCase().startsWith('zh') ? 'zh' : 'en';
}

/** Translate the page. */
export function speak(chosen) {
  language = chosen;
  document.documentElement.lang = chosen === 'zh' ? 'zh-CN' : 'en';
  for (const button of document.querySelectorAll('[data-language]'))
    button.setAttribute('aria-pressed', String(button.dataset.language === chosen));
  label(document);
}

export function remember(chosen) {
  try { localStorage.setItem(KEY, chosen); } catch { /* as above */ }
}

/** Translate the elements below a root: data-t is the text, data-l the label, data-p the placeholder. */
export function label(root) {
  for (const element of root.querySelectorAll('[data-t]')) element.textContent = t(element.dataset.t) ?? element.textContent;
  for (const element of root.querySelectorAll('[data-p]')) element.placeholder = t(element.dataset.p);
  for (const element of root.querySelectorAll('[data-l]')) {
    element.setAttribute('aria-label', t(element.dataset.l));
    if (element.localName === 'button') element.title = t(element.dataset.l);
  }
}
