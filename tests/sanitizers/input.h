// SPDX-License-Identifier: Apache-2.0
// Bytes of one input, taken as numbers; zeros when there are no more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

using Bytes = std::vector<uint8_t>;

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  bool isEmpty() const { return left_ == 0; }

  uint8_t byte() { return take<uint8_t>(); }
  int64_t number() { return take<int64_t>(); }

  // So many bytes, or what is left.
  Bytes bytes(size_t count) {
    count = count < left_ ? count : left_;
    Bytes taken(data_, data_ + count);
    skip(count);
    return taken;
  }

  // Everything up to a zero, which is taken too.
  std::string text() {
    const void* end = left_ == 0 ? nullptr : std::memchr(data_, 0, left_);
    const size_t size = end == nullptr ? left_ : static_cast<size_t>(static_cast<const uint8_t*>(end) - data_);
    std::string taken(reinterpret_cast<const char*>(data_), size);
    skip(end == nullptr ? size : size + 1);
    return taken;
  }

 private:
  template <class T>
  T take() {
    T value{};
    const size_t count = sizeof(T) < left_ ? sizeof(T) : left_;
    if (count > 0) std::memcpy(&value, data_, count);
    skip(count);
    return value;
  }

  void skip(size_t count) {
    data_ += count;
    left_ -= count;
  }

  const uint8_t* data_;
  size_t left_;
};

// What an input's first byte chooses among.
void feedPlugin(Input input);     // 'P': a creator's fields, and a plugin's tensors
void feedBatching(Input input);   // 'B': a model's configuration, and requests
void feedBackend(Input input);    // 'N': a plan's metadata, and a model's configuration
void feedText(Input input);       // 'T': words, and texts that are looked up
void feedTokenizer(Input input);  // 'K': a compiled tokenizer, and texts
