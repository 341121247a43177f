"""Exchange with transformers: models out and in, and attnlab's mechanisms inside other people's models.

    import attnlab.exchange                                     # registers everything below

    AutoModelForCausalLM.from_pretrained(folder)                # a folder that `attnlab export` wrote
    AutoModel.from_pretrained(..., attn_implementation="attnlab:performer")

Importing it imports transformers, which takes seconds: nothing else in attnlab does. Nothing here computes what the model or
a mechanism computes; it is handed over.
"""

from attnlab.errors import UserError

try:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
except ImportError:
    raise UserError("transformers is not installed, and exchange needs it: pip install 'attnlab[hf]'") from None

from attnlab.hf.attention import equip, register, register_all
from attnlab.hf.exporting import export
from attnlab.hf.importing import import_model, read_folder
from attnlab.hf.modeling import AttnlabConfig, AttnlabForCausalLM
from attnlab.hf.symbols import AttnlabWordTokenizer
from attnlab.look import attentions_of, circuits_of

AutoConfig.register(AttnlabConfig.model_type, AttnlabConfig, exist_ok=True)
AutoModelForCausalLM.register(AttnlabConfig, AttnlabForCausalLM, exist_ok=True)
AutoTokenizer.register(AttnlabConfig, fast_tokenizer_class=AttnlabWordTokenizer, exist_ok=True)
register_all()

__all__ = [
    "AttnlabConfig",
    "AttnlabForCausalLM",
    "AttnlabWordTokenizer",
    "attentions_of",
    "circuits_of",
    "equip",
    "export",
    "import_model",
    "read_folder",
    "register",
]
