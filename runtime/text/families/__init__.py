# SPDX-License-Identifier: Apache-2.0
"""What tokenizer classes of transformers make of a folder's tokenizer.json and settings.

`classes` tells which class a folder has, `rebuilding` builds its tokenizer; a module per kind of vocabulary holds
families of classes that build alike.
"""
