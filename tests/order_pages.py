"""The kinds of pages whose reading order is known, and pages drawn of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import order_cell_pages as cells
import order_table_pages as tables
import order_text_pages as texts
from order_sheet import Sheet

KINDS: Mapping[str, Callable[[Sheet], None]] = {
    **{f"columns_{count}": texts.columns_page(count) for count in (1, 2, 3, 4)},
    **{
        draw.__name__: draw
        for draw in (
            texts.columns_under_headings,
            texts.chart_in_text,
            texts.figures_in_columns,
            texts.four_text_pages_on_a_sheet,
            texts.two_pages_on_a_sheet,
            texts.sidebar_right,
            texts.sidebar_left,
            texts.vertical_chinese,
            texts.mixed_languages,
            texts.footnotes_and_captions,
            texts.text_around_a_figure,
            texts.slide,
            texts.newspaper,
            texts.comic,
            tables.tables_in_the_right_column,
            tables.table_in_the_left_column,
            tables.four_pages_on_a_sheet,
            tables.form,
            tables.form_of_one_pair,
            tables.boxed_form,
            tables.receipt,
            tables.table,
            tables.table_of_words,
            tables.table_of_paragraphs,
            tables.tables_side_by_side,
            tables.stock_tables,
            tables.invoice,
            tables.numbered_lines,
            tables.definitions,
            tables.index,
            tables.menu,
            cells.ruled_table_with_merged_heads,
            cells.ruled_table_of_several_lines,
            cells.framed_cards,
            cells.goods_without_rules,
            cells.receipt_of_wrapped_names,
            cells.address_blocks,
            cells.labels_of_two_lines,
            cells.columns_in_bands,
        )
    },
}
"""Each draws one page; lines are set in reading order."""
