"""Tables of Markdown that a script measures: it prints them as a page has them, and says where the page differs."""


def show(page, head, rows):
    """Prints a table; returns a sentence for each row that the page has otherwise, or not at all."""
    lines = [row_of(cells) for cells in rows]
    title = row_of(head)
    print("\n".join([title, "|" + "---|" * len(head), *lines]), flush=True)
    print(flush=True)
    text = page.read_text().split("\n")
    if title not in text:
        return [f"{page.name} has no table with this head: {title}"]
    start = text.index(title) + 2
    there = []
    for line in text[start:]:
        if not line.startswith("|"):
            break
        there.append(line)
    missing = [f"{page.name} has not this row: {line}" for line in lines if line not in there]
    return missing + [f"{page.name} has a row that was not measured: {line}" for line in there if line not in lines]


def row_of(cells):
    return "| " + " | ".join(map(str, cells)) + " |"
