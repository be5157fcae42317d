"""Holds the README to the code."""

from pathlib import Path

from pydantic_core import PydanticUndefined

from gateway.settings import Settings

README = Path(__file__).parents[1] / "README.md"


def settings_table() -> str:
    """Return the README's configuration table, from the settings themselves."""
    rows = ["| variable | default | |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        assert field.default is not PydanticUndefined
        default = field.default
        shown = (
            "" if default in ((), {}, None) else f"`{str(default).lower() if isinstance(default, bool) else default}`"
        )
        rows.append(f"| `GATEWAY_{name.upper()}` | {shown} | {field.description} |")
    return "\n".join(rows)


def test_the_configuration_table_is_the_settings() -> None:
    text = README.read_text()
    shown = text.split("<!-- settings: begin -->\n")[1].split("\n<!-- settings: end -->")[0]
    assert shown == settings_table()
