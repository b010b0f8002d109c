// Shows the service's OpenAPI description.

const METHODS = ['get', 'post', 'put', 'delete'];
const SHARED_ANSWERS = '#/components/responses/';

const reference = document.getElementById('reference');

/** The element of an operation; page.css knows shorter ids. */
const idOf = ({ operationId }) => `operation-${operationId}`;

/** An element with text or children. */
function make(name, ...children) {
  const element = document.createElement(name);
  element.append(...children);
  return element;
}

function table(rows) {
  const frame = make('div', make('table', ...rows.map((cells) => make('tr', ...cells.map((cell) => make('td', cell))))));
  frame.className = 'scroll';
  return frame;
}

/** A schema in a few words: type, choices, limits, default. */
function wordsOf(schema = {}) {
  if (schema.$ref) return schema.$ref.split('/').at(-1);
  const parts = [schema.enum?.join(', ') ?? (schema.anyOf ?? schema.oneOf)?.map(wordsOf).join(' or ') ?? (schema.const !== undefined ? String(schema.const) : schema.type ?? '')];
  if (schema.minimum !== undefined) parts.push(schema.maximum === undefined ? `from ${schema.minimum}` : `${schema.minimum} to ${schema.maximum}`);
  if (schema.default !== undefined) parts.push(`default: ${schema.default}`);
  return parts.filter(Boolean).join(', ');
}

function parametersOf(parameters) {
  return table(parameters.map(({ name, in: place, schema, description = '' }) => [name, place, wordsOf(schema), description || schema?.description || '']));
}

function bodyOf({ description = '', content }) {
  return table(Object.entries(content).map(([type, { schema }]) => [type, Object.keys(schema?.properties ?? {}).slice(0, 40).join(', ') || 'the file']))
    .appendChild(make('p', description)).parentElement;
}

function answersOf(responses, shared) {
  return table(Object.entries(responses).map(([status, answer]) => {
    const { description, content = {} } = answer.$ref ? shared[answer.$ref.slice(SHARED_ANSWERS.length)] : answer;
    return [status, Object.keys(content).join(', '), description];
  }));
}

function exampleOf(path, method, operation) {
  const url = new URL(`.${path}`, document.baseURI);
  const body = operation.requestBody?.content;
  const send = body?.['multipart/form-data'] ? '-F file=@page.png ' : body ? '--data-binary @page.png ' : method === 'get' ? '' : `-X ${method.toUpperCase()} `;
  return make('pre', `curl ${send}${decodeURI(url.href)}`);
}

function operationOf(path, method, operation, shared) {
  const article = make('article', make('h2', make('b', method.toUpperCase()), path), make('p', operation.summary));
  article.id = idOf(operation);
  article.append(exampleOf(path, method, operation));
  if (operation.parameters?.length) article.append(make('h3', 'Parameters'), parametersOf(operation.parameters));
  if (operation.requestBody) article.append(make('h3', 'Body'), bodyOf(operation.requestBody));
  article.append(make('h3', 'Answers'), answersOf(operation.responses, shared));
  return article;
}

async function show() {
  const answer = await fetch(new URL('openapi.json', document.baseURI));
  if (!answer.ok) throw new Error(`openapi.json: ${answer.status}`);
  const { info, paths, components } = await answer.json();
  document.getElementById('version').textContent = `${info.version}. ${info.summary}`;
  const operations = Object.entries(paths).flatMap(([path, item]) => METHODS.filter((method) => item[method]).map((method) => [path, method, item[method]]));
  const index = make('nav', ...operations.map(([path, method, operation]) => {
    const link = make('a', `${method.toUpperCase()} ${path}`);
    link.href = `docs#${idOf(operation)}`;
    return link;
  }));
  index.className = 'index';
  index.setAttribute('aria-label', 'Operations');
  reference.replaceChildren(index, ...operations.map(([path, method, operation]) => operationOf(path, method, operation, components.responses)));
  // Styles that arrive later would move the operation away.
  if (document.readyState !== 'complete') await new Promise((resolve) => { addEventListener('load', resolve); });
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

show().catch((error) => reference.replaceChildren(make('p', `The description cannot be shown: ${error.message}`)));
