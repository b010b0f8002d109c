// Runs ocr-space-api-wrapper unmodified: node ocr_space_wrapper.js MODULE ADDRESS.
const [module_, address] = process.argv.slice(2);
const { ocrSpace } = require(module_);
ocrSpace('page.png', { ocrUrl: `${address}/parse/image`, isOverlayRequired: true })
  .then((answer) => console.log(JSON.stringify(answer)));
