// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "engine/engine_abi.h"
#include "triton_backend/metadata.h"
#include "triton_backend/open_request.h"
#include "triton_backend/request.h"

namespace padfree {

struct Piece;

// A request for sequences, which runs in one piece or in several.
//
// Only one thread at a time may answer it. `pieces_left` is counted up by the thread that cuts requests into runs, and
// afterwards counted down by the one that finishes runs.
class Pending : public OpenRequest {
 public:
  using OpenRequest::OpenRequest;

  // Copies the rows of a piece from a lane's outputs, in which they begin at this token and this sequence.
  void take(const Piece& piece, const Metadata& metadata, Lane& lane, int64_t token, int64_t sequence);

  RequestData data;
  size_t text_bytes = 0;  // that are turned into tokens when the request is read
  size_t pieces_left = 0;

 private:
  void openOutputs(const Metadata& metadata);
  void addTextOutputs();
  void takeTokens(const Piece& piece, const Output& output, size_t number, Lane& lane, int64_t token,
                  const Target& target) const;

  std::vector<Target> targets_;  // one for every wanted output, once the first piece has come
};

}  // namespace padfree
