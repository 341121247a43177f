"""Model cards: README.md of an exported model and of an encoder, from the templates in this folder."""

from jinja2 import Environment, PackageLoader, StrictUndefined


def render_card(template: str, **facts: object) -> str:
    """A card as Markdown, from `model.md.j2` or `encoder.md.j2`."""
    environment = Environment(
        loader=PackageLoader("attnlab.hf", "cards"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(f"{template}.md.j2").render(facts)
