# SPDX-License-Identifier: Apache-2.0
"""The one way from texts to a model's token inputs, which every door takes.

`tokenizer_file` reads a tokenizer.json with the tokenizer_config.json beside it, `encoder` makes ids and types of
texts, and `inputs` names the model's inputs that these fill.
"""
