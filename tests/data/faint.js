() => {
    // Texts whose contrast with what is behind them is below 4.5 (WCAG 2.2, 1.4.3).
    const rgba = (text) => text.match(/[\d.]+/g).map((part) => part * (text.startsWith('color') ? 255 : 1));
    const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
        .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
        .reduce((sum, c, index) => sum + c * [0.2126, 0.7152, 0.0722][index], 0);
    const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = rgba(getComputedStyle(at).backgroundColor);
            if (colour.length < 4 || colour[3] === 1) return colour;
        }
        return [255, 255, 255];
    };
    return [...document.querySelectorAll('body *')]
        .filter((element) => element.offsetParent && !element.childElementCount && element.textContent.trim())
        .filter((element) => {
            const [one, two] = [light(rgba(getComputedStyle(element).color)), light(behind(element))];
            return (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05) < 4.5;
        })
        .map((element) => element.outerHTML);
}
