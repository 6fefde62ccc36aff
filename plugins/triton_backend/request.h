// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine_abi.h"
#include "triton_backend/metadata.h"
#include "triton_backend/tensors.h"
#include "triton_backend/text_tokenizer.h"
#include "triton_backend/triton_abi.h"

namespace padfree {

// The content of a request: sequences in rows of `width` tokens, of which the first seq_lens[i] count.
struct RequestData {
  int64_t sequences = 0;
  int64_t width = 0;
  std::vector<int32_t> seq_lens;
  std::vector<Column> columns;  // one for every input of the metadata
  std::vector<size_t> wanted;   // outputs, by their number in the metadata
  std::vector<bool> on_device;  // for each of these: whether the caller has device memory for it
  std::vector<char> truncated;  // for each text: whether its end, or beginning, was cut off; empty: sequences of ids
  bool wants_seq_lens = false, wants_truncated = false;
};

// Reads and checks a request. Throws Failure, with a message for the caller, if it does not fit the model. Buffers
// belong to the server and last until the request is released. texts: null if the model takes none.
RequestData readRequest(TRITONBACKEND_Request* request, const Metadata& metadata, const Engine& engine,
                        const TextTokenizer* texts);

}  // namespace padfree
