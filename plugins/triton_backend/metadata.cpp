// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/metadata.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <stdexcept>

#include "common/text.h"
#include "tokenizer/numbers.h"
#include "triton_batching/failure.h"

namespace padfree {
namespace {

constexpr std::array<const char*, 6> kIdNames = {"input_ids", "input_word_ids", "token_ids", "word_ids",
                                                 "ids",       "tokens"};
constexpr std::array<const char*, 2> kZeroWhenMissing = {"token_type_ids", "segment_ids"};
constexpr const char* kPromptLength = "prompt_length";
constexpr int64_t kMost = int64_t{1} << 48;  // the largest allowed: products of two sizes in bytes cannot overflow
constexpr int64_t kMostWidth = int64_t{1} << 16;
constexpr const char* kPython = "; serve it with the Python backend: padfree triton --backend python";

// Indexed by PadfreeType.
constexpr TypeInfo kTypes[] = {{"float32", kPadfreeFloat32, "TYPE_FP32", TRITONSERVER_TYPE_FP32, 4},
                               {"float16", kPadfreeFloat16, "TYPE_FP16", TRITONSERVER_TYPE_FP16, 2},
                               {"bfloat16", kPadfreeBFloat16, "TYPE_BF16", TRITONSERVER_TYPE_BF16, 2},
                               {"int32", kPadfreeInt32, "TYPE_INT32", TRITONSERVER_TYPE_INT32, 4},
                               {"int64", kPadfreeInt64, "TYPE_INT64", TRITONSERVER_TYPE_INT64, 8},
                               {"bool", kPadfreeBool, "TYPE_BOOL", TRITONSERVER_TYPE_BOOL, 1}};

struct RoleName {
  const char* name;
  Input::Role role;
  PadfreeRows rows;
};
constexpr RoleName kRoles[] = {{"tokens", Input::Role::kTokens, kPadfreeTokens},
                               {"per_sequence", Input::Role::kPerSequence, kPadfreeSequences},
                               {"seq_lens", Input::Role::kSeqLens, kPadfreeSequences},
                               {"max_seqlen", Input::Role::kMaxSeqLen, kPadfreeSlots},
                               {"prefix", Input::Role::kPrefix, kPadfreeOnce},
                               {"unread", Input::Role::kUnread, kPadfreeTokens}};

template <class Names>
bool isOneOf(const Names& names, const std::string& name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// Reads the fields of one file; messages about errors begin with its name.
class Reader {
 public:
  explicit Reader(std::string source) : source_(std::move(source)) {}

  [[noreturn]] void refuse(const std::string& reason) const { throw Failure(source_ + ": " + reason); }
  [[noreturn]] void damaged(const std::string& reason) const {
    refuse("damaged padfree metadata: " + reason + "; build the plan again");
  }

  int64_t integer(const Json& value, const std::string& what, int64_t least, int64_t most = kMost) const {
    try {
      return readNumber(value, least, most);
    } catch (const std::invalid_argument& error) {
      damaged(what + " is " + error.what());
    }
  }

  const std::string& string(const Json& object, const char* field) const {
    const std::string& value = object[field].text();
    if (value.empty()) damaged(text("no '", field, "'"));
    return value;
  }

  const TypeInfo& type(const Json& object) const {
    const std::string& dtype = string(object, "dtype");
    for (const TypeInfo& known : kTypes) {
      if (dtype == known.name) return known;
    }
    refuse("'" + string(object, "name") + "' has type " + dtype.substr(0, 40) + ", which cannot be served" + kPython);
  }

 private:
  std::string source_;
};

bool isAbsent(const Json& value) {
  return value.text().empty() || value.text() == "null";
}

int64_t rowBytes(const Reader& reader, const std::vector<int64_t>& trailing, int64_t bytes) {
  for (const int64_t size : trailing) {
    if (__builtin_mul_overflow(bytes, size, &bytes) || bytes > kMost) reader.damaged("a row of more than 2^48 bytes");
  }
  return bytes;
}

const RoleName& readRole(const Reader& reader, const Json& item) {
  const std::string& role = reader.string(item, "role");
  for (const RoleName& known : kRoles) {
    if (role == known.name) return known;
  }
  reader.refuse("input '" + reader.string(item, "name") + "' has the role " + role.substr(0, 40) +
                ", which this backend does not fill" + kPython);
}

Input readInput(const Reader& reader, const Json& item, const Json& all_excluded) {
  Input input;
  input.name = reader.string(item, "name");
  const RoleName& role = readRole(reader, item);
  input.role = role.role;
  input.rows = role.rows;
  const TypeInfo& type = reader.type(item);
  input.type = type.type;
  const std::string original = isAbsent(item["original"]) ? input.name : item["original"].text();
  if (type.type != kPadfreeInt32 && !(type.type == kPadfreeFloat32 && input.comesWithRequests())) {
    reader.refuse("input '" + input.name + "' has type " + type.name + ", allowed: int32, and float32 of tokens and " +
                  "sequences" + kPython);
  }
  if (item["shared"].text() == "true") {
    reader.refuse("the model has '" + input.name + "' once for a whole batch, and requests share runs here" + kPython);
  }
  if (!isAbsent(item["width"])) input.trailing = {reader.integer(item["width"], input.name + ".width", 1, kMostWidth)};
  input.row_bytes = rowBytes(reader, input.trailing, type.bytes);
  input.limit = isAbsent(item["limit"]) ? 0 : reader.integer(item["limit"], input.name + ".limit", 1);
  for (const Json& value : all_excluded[original].items()) {
    input.excluded.push_back(
        static_cast<int32_t>(reader.integer(value, input.name + ".excluded_ids", INT32_MIN, INT32_MAX)));
  }
  input.zero_when_missing =
      input.role == Input::Role::kTokens ? isOneOf(kZeroWhenMissing, input.name) : original == kPromptLength;
  return input;
}

Output readOutput(const Reader& reader, const Json& item) {
  Output output;
  output.name = reader.string(item, "name");
  const TypeInfo& type = reader.type(item);
  output.type = type.type;
  const std::string& layout = reader.string(item, "layout");
  const auto& shape = item["shape"].items();
  bool has_rows = (layout == "packed" || layout == "per_sequence") && !shape.empty();
  output.rows = layout == "packed" ? kPadfreeTokens : kPadfreeSequences;
  for (size_t axis = 1; axis < shape.size() && has_rows; ++axis) {
    has_rows = !isAbsent(shape[axis]);
    if (has_rows) output.trailing.push_back(reader.integer(shape[axis], output.name + ".shape", 1));
  }
  const auto& dims = item["dims"].items();
  for (size_t axis = 0; axis < dims.size() && has_rows; ++axis) {
    const std::string& size = dims[axis].text();
    has_rows = axis == 0 ? size == (layout == "packed" ? "T" : "B") : size.find_first_not_of("0123456789") == size.npos;
  }
  if (!has_rows) {
    reader.refuse("output '" + output.name + "' has no row of one size for every token or every sequence" + kPython);
  }
  output.row_bytes = rowBytes(reader, output.trailing, type.bytes);
  return output;
}

size_t findIds(const Reader& reader, const std::vector<Input>& inputs) {
  size_t found = inputs.size();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Input& input = inputs[i];
    if (input.role != Input::Role::kTokens || input.zero_when_missing) continue;
    const bool is_better = found == inputs.size() || (!inputs[found].trailing.empty() && input.trailing.empty());
    if (is_better || (isOneOf(kIdNames, input.name) && !isOneOf(kIdNames, inputs[found].name))) found = i;
  }
  if (found == inputs.size()) reader.damaged("no input of the role tokens that every request has");
  return found;
}

void readEngine(const Reader& reader, const Json& engine, Metadata& metadata) {
  const Json& profile = engine["profile"];
  if (!profile.isObject()) reader.damaged("no 'engine' with a 'profile'");
  metadata.min_tokens = reader.integer(profile["min_tokens"], "min_tokens", 1);
  metadata.max_tokens = reader.integer(profile["max_tokens"], "max_tokens", metadata.min_tokens, INT32_MAX);
  metadata.max_sequences = reader.integer(profile["max_batch"], "max_batch", 1, INT32_MAX);
  metadata.max_slots = reader.integer(profile["max_seq_len"], "max_seq_len", 1, INT32_MAX);
  metadata.plan_bytes = reader.integer(engine["plan_bytes"], "plan_bytes", 0);
  metadata.plan_sha256 = reader.string(engine, "plan_sha256");
  metadata.tensorrt = reader.string(engine, "tensorrt");
  metadata.gpu_name = reader.string(engine, "gpu_name");
  metadata.compute_capability = reader.string(engine, "compute_capability");
  metadata.has_plugins = engine["plugin_layers"].isObject() && !engine["plugin_layers"].members().empty();
}

void checkNames(const Reader& reader, const Metadata& metadata) {
  std::vector<std::string> names;
  for (const Input& input : metadata.inputs) names.push_back(input.name);
  for (const Output& output : metadata.outputs) names.push_back(output.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) reader.damaged("'" + *twice + "' twice");
  if (metadata.outputs.empty()) reader.damaged("no outputs");
}

}  // namespace

const TypeInfo& infoOf(PadfreeType type) {
  return kTypes[type];
}

Metadata readMetadata(const std::string& text, const std::string& source) {
  const Reader reader(source);
  Json root;
  try {
    root = Json::parse(text);
  } catch (const std::invalid_argument&) {
    reader.damaged("no JSON");
  }
  if (root["format"].text() != "1") {
    reader.refuse("padfree metadata format '" + root["format"].text().substr(0, 40) +
                  "', this backend reads format 1; build the plan again with the padfree that wrote the backend");
  }
  if (root["interface"].text() != "packed") {
    reader.refuse("the plan has the " + root["interface"].text().substr(0, 40) +
                  " interface, this backend serves packed ones; build it with --interface packed, or serve it with "
                  "the Python backend: padfree triton --backend python");
  }
  Metadata metadata;
  const Json& excluded = root["coverage"]["excluded_ids"];
  for (const Json& item : root["inputs"].items()) metadata.inputs.push_back(readInput(reader, item, excluded));
  for (const Json& item : root["outputs"].items()) metadata.outputs.push_back(readOutput(reader, item));
  checkNames(reader, metadata);
  metadata.ids = findIds(reader, metadata.inputs);
  metadata.max_positions =
      isAbsent(root["max_positions"]) ? 0 : reader.integer(root["max_positions"], "max_positions", 1);
  readEngine(reader, root["engine"], metadata);
  metadata.longest = std::min(metadata.max_slots, metadata.max_tokens);
  if (metadata.max_positions > 0) metadata.longest = std::min(metadata.longest, metadata.max_positions);
  return metadata;
}

}  // namespace padfree
