(root) => {
    const card = document.querySelector(root).getBoundingClientRect();
    const controls = [...document.querySelectorAll(`${root} :is(button, input, select, summary)`)]
        .filter((one) => one.checkVisibility({ visibilityProperty: true }) && !one.matches('.drop-one'));
    const boxes = controls.map((one) => one.getBoundingClientRect())
        .map((box) => [box.left, box.top, box.right, box.bottom]);
    const name = (one) => one.id || one.name || one.textContent;
    const wrong = [];
    boxes.forEach(([l, t, r, b], i) => {
        if (l < card.left - 1 || r > card.right + 1) wrong.push(`${name(controls[i])} leaves ${root}`);
        boxes.slice(i + 1).forEach(([l2, t2, r2, b2], j) => {
            if (Math.min(r, r2) - Math.max(l, l2) > 1 && Math.min(b, b2) - Math.max(t, t2) > 1)
                wrong.push(`${name(controls[i])} overlaps ${name(controls[i + 1 + j])}`);
        });
    });
    return wrong;
}
