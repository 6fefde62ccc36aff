// SPDX-License-Identifier: Apache-2.0
// Token ids of texts, as the tokenizers library computes them with a tokenizer of BERT's kind.
// builder/triton/compiled_tokenizer.py writes the file that is read here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/characters.h"
#include "tokenizer/token_tree.h"

namespace padfree {

// How much of a text, or of a pair, is kept.
struct TextLimit {
  int64_t most;            // tokens, including those around the texts
  bool keeps_end = false;  // whether the excess is cut from the beginning
};

struct EncodedText {
  std::vector<int32_t> ids, types;
  int64_t whole = 0;  // how many tokens there would be without a limit
  bool isCut() const { return whole > static_cast<int64_t>(ids.size()); }
};

// May be shared between threads.
class Tokenizer {
 public:
  // Throws std::invalid_argument if the file is damaged.
  explicit Tokenizer(std::string_view file);

  // `second`: the second text of a pair, or null.
  EncodedText encode(std::u32string_view first, const std::u32string* second, TextLimit limit) const;

  // The token with the largest id, and that id.
  const std::string& largestToken() const { return largest_token_; }
  int32_t largestId() const { return largest_id_; }
  // How many tokens are added after a single text.
  size_t tokensBehind() const { return single_.parts.back().ids.size(); }

 private:
  struct Part {
    std::vector<int32_t> ids, types;
  };
  struct Frame {
    std::vector<Part> parts;          // before, between and after the texts
    std::vector<int32_t> text_types;  // one per text
    int64_t size() const;
  };

  Frame readFrame(const Json& frame, size_t texts) const;
  TokenTree readTokens(const Json& tokens);
  void appendText(std::u32string_view text, std::vector<int32_t>& ids) const;
  void appendWords(std::u32string_view text, std::vector<int32_t>& ids, std::u32string& buffer) const;
  void appendWord(std::u32string_view word, std::vector<int32_t>& ids) const;

  std::string largest_token_;
  int32_t largest_id_ = -1;
  Characters characters_;
  TokenTree vocabulary_, added_;
  uint32_t inside_;  // the node at which pieces go on that do not begin a word
  int32_t unknown_;
  size_t longest_word_;
  Frame single_, pair_;

  explicit Tokenizer(const Json& file);
};

}  // namespace padfree
