([event, files]) => {
    const data = new DataTransfer();
    for (const [name, type, body] of files)
        data.items.add(new File([Uint8Array.from(atob(body), (c) => c.charCodeAt(0))], name, {type}));
    const options = {bubbles: true, cancelable: true, clipboardData: data, dataTransfer: data};
    document.body.dispatchEvent(event === 'paste' ? new ClipboardEvent(event, options) : new DragEvent(event, options));
}
