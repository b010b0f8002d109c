// Runs LibreChat's unmodified code for Mistral's OCR; what it imports of LibreChat is stood in for.
//
// node librechat_mistral.js CRUD_FILE ADDRESS NODE_MODULES
const path = require('path');
const [source, address, modules] = process.argv.slice(2);
const esbuild = require(path.join(modules, 'esbuild'));

const STAND_INS = {
  '@librechat/data-schemas': 'export const logger = { error: console.error, debug() {} };',
  'librechat-data-provider': `
    export const FileSources = { mistral_ocr: 'mistral_ocr', azure_mistral_ocr: 'azure_mistral_ocr' };
    export const envVarRegex = /^\\\${(.+)}$/;
    export const extractEnvVariable = (value) => value;
    export const extractVariableName = (value) => value;`,
  '~/admin/secrets': 'export const isEncryptedSecretPayload = () => false; export const decryptConfigSecret = () => null;',
  '~/utils/axios': `
    import axios from 'axios';
    export const createAxiosInstance = () => axios.create();
    export const logAxiosError = ({ message, error }) => message + ' ' + error.message;`,
  '~/auth/agent': 'export const applySSRFSafeAgentIfDirect = () => {};',
  '~/protection/files': 'export const hasActiveFilePolicy = () => false;',
  '~/utils/errors': 'export const getSafeErrorMetadata = () => ({});',
  '~/utils/proxy': 'export const applyAxiosProxyConfig = () => {};',
  '~/utils/files': `
    import * as fs from 'fs';
    export const readFileAsBuffer = async (name) => ({ content: fs.readFileSync(name) });`,
  '~/utils/key': 'export const loadServiceKey = async () => null;',
};

const standIns = {
  name: 'stand-ins',
  setup(build) {
    const names = Object.keys(STAND_INS).map((name) => name.replace(/[/.]/g, '\\$&'));
    build.onResolve({ filter: new RegExp(`^(${names.join('|')})$`) }, ({ path: name }) => ({ path: name, namespace: 'stand-in' }));
    build.onLoad({ filter: /.*/, namespace: 'stand-in' }, ({ path: name }) => ({ contents: STAND_INS[name], resolveDir: modules }));
  },
};

async function main() {
  const options = { bundle: true, platform: 'node', format: 'cjs', write: false, nodePaths: [modules], plugins: [standIns] };
  const built = await esbuild.build({ entryPoints: [source], ...options });
  const client = { exports: {} };
  new Function('module', 'exports', 'require', '__dirname', built.outputFiles[0].text)(client, client.exports, require, modules);
  const req = { user: { id: 'one' }, config: { ocr: { apiKey: 'none', baseURL: `${address}/v1` } } };
  const loadAuthValues = async () => ({});
  for (const [name, mimetype] of [['page.png', 'image/png'], ['document.pdf', 'application/pdf']]) {
    const file = { path: name, originalname: name, mimetype, size: 0 };
    const { uploadMistralOCR, uploadAzureMistralOCR } = client.exports;
    console.log((await uploadMistralOCR({ req, file, loadAuthValues })).text);
    console.log((await uploadAzureMistralOCR({ req, file, loadAuthValues })).text);
  }
}

main();
