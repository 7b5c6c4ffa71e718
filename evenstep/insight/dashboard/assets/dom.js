// Makes and changes elements. Text is always inserted as text, so that nothing from a log is markup.

export const find = (id) => document.getElementById(id);

export function make(tag, { text, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  element.append(...children);
  return element;
}

export function say(element, text, value) {
  if (element.textContent !== text) element.textContent = text;
  if (value !== undefined) element.dataset.value = value === null ? "" : String(value);
}

export function fillSelect(select, options, chosen) {
  const same = select.options.length === options.length
    && options.every(({ value, text }, i) => select.options[i].value === value && select.options[i].text === text);
  if (!same) select.replaceChildren(...options.map(({ value, text }) => make("option", { value, text })));
  if (select.value !== chosen) select.value = chosen;
}
