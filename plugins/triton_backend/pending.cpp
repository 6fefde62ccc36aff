// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/pending.h"

#include <algorithm>
#include <cstring>

#include "triton_backend/run.h"

namespace padfree {
namespace {

// Rows of a lane's output on their way to a caller's buffer.
struct Copier {
  Lane& lane;
  size_t output;
  int64_t row_bytes;
  char* buffer;
  bool on_device;

  void rows(int64_t source_row, int64_t target_row, int64_t count) const {
    const int64_t source = source_row * row_bytes, target = target_row * row_bytes, bytes = count * row_bytes;
    const char* values = on_device ? nullptr : lane.output(output);
    if (values != nullptr) {
      std::memcpy(buffer + target, values + source, bytes);
    } else {
      lane.copyOut(output, source, buffer + target, bytes);
    }
  }

  void zeros(int64_t target_row, int64_t count) const {
    if (on_device) {
      lane.zeroOut(buffer + target_row * row_bytes, count * row_bytes);
    } else {
      std::memset(buffer + target_row * row_bytes, 0, count * row_bytes);
    }
  }
};

}  // namespace

void Pending::take(const Piece& piece, const Metadata& metadata, Lane& lane, int64_t token, int64_t sequence) {
  if (!hasResponse()) openOutputs(metadata);
  bool on_device = false;
  for (size_t i = 0; i < data.wanted.size(); ++i) {
    const Output& output = metadata.outputs[data.wanted[i]];
    if (output.rows == kPadfreeTokens) {
      takeTokens(piece, output, data.wanted[i], lane, token, targets_[i]);
    } else {
      const Copier copy{lane, data.wanted[i], output.row_bytes, targets_[i].buffer, targets_[i].on_device};
      copy.rows(sequence, static_cast<int64_t>(piece.first), static_cast<int64_t>(piece.last - piece.first));
    }
    on_device = on_device || targets_[i].on_device || lane.output(data.wanted[i]) == nullptr;
  }
  if (on_device) lane.finishCopies();
}

void Pending::takeTokens(const Piece& piece, const Output& output, size_t number, Lane& lane, int64_t token,
                         const Target& target) const {
  const Copier copy{lane, number, output.row_bytes, target.buffer, target.on_device};
  for (size_t i = piece.first; i < piece.last; ++i) {
    const int64_t length = data.seq_lens[i], row = static_cast<int64_t>(i) * data.width;
    copy.rows(token, row, length);
    if (length < data.width) copy.zeros(row + length, data.width - length);
    token += length;
  }
}

void Pending::openOutputs(const Metadata& metadata) {
  openResponse();
  for (const size_t number : data.wanted) {
    const Output& output = metadata.outputs[number];
    std::vector<int64_t> shape = {data.sequences};
    int64_t rows = data.sequences;
    if (output.rows == kPadfreeTokens) {
      shape.push_back(data.width);
      rows *= data.width;
    }
    shape.insert(shape.end(), output.trailing.begin(), output.trailing.end());
    targets_.push_back(addOutput(output.name, infoOf(output.type).triton, shape, rows * output.row_bytes));
  }
  addTextOutputs();
}

void Pending::addTextOutputs() {
  const std::vector<int64_t> shape = {data.sequences, 1};
  if (data.wants_seq_lens) {
    const auto bytes = data.sequences * static_cast<int64_t>(sizeof(int32_t));
    std::memcpy(addHostOutput(kSeqLens, TRITONSERVER_TYPE_INT32, shape, bytes), data.seq_lens.data(), bytes);
  }
  if (!data.wants_truncated) return;
  char* truncated = addHostOutput(kTruncated, TRITONSERVER_TYPE_BOOL, shape, data.sequences);
  std::memset(truncated, 0, data.sequences);
  std::copy(data.truncated.begin(), data.truncated.end(), truncated);
}

}  // namespace padfree
