"""A browser that lacks what the page needs is told so, and nothing is begun in it."""

import pytest

NEEDED = "Needed: Chrome 103, Firefox 114, Safari 16.4, or newer."


@pytest.mark.parametrize(
    ("gone", "feature"),
    [
        ("delete globalThis.DecompressionStream", "DecompressionStream"),
        ("delete Object.hasOwn; delete globalThis.BigInt", "BigInt, Object.hasOwn"),
        ("WebAssembly.validate = () => false", "WebAssembly with SIMD"),
        (
            "const real = DecompressionStream; globalThis.DecompressionStream = function (form) {"
            "if (form === 'deflate-raw') throw new TypeError('no such form'); return new real(form); }",
            "DecompressionStream",
        ),
    ],
)
def test_a_browser_is_told_what_it_lacks(visit, gone, feature):
    visitor = visit()
    visitor.context.add_init_script(gone)
    page = visitor.open()
    trouble = f"This browser is too old for this page: it has no {feature}. {NEEDED}"
    page.get_by_text(trouble, exact=True).wait_for()
    assert page.is_hidden("#join")
    assert not any("/join/device/" in url for url in visitor.requests)
    assert visitor.wrong == []
