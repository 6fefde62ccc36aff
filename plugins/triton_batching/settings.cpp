// SPDX-License-Identifier: Apache-2.0
#include "triton_batching/settings.h"

#include <charconv>

#include "triton_batching/failure.h"

namespace padfree {
namespace {

constexpr const char* kMaxTokens = "padfree_max_tokens";

[[noreturn]] void refuse(const std::string& model, const std::string& reason) {
  throw Failure("padfree: model '" + model + "': " + reason);
}

// Returns 0 for text that is not a decimal number of at most 64 bits.
uint64_t readCount(const std::string& text) {
  uint64_t count = 0;
  const char* const last = text.data() + text.size();
  return std::from_chars(text.data(), last, count).ptr == last ? count : 0;
}

std::string findRaggedInput(const Json& config) {
  for (const Json& input : config["input"].items()) {
    if (input["allow_ragged_batch"].text() == "true") return input["name"].text();
  }
  return "";
}

// The cache's key covers what a request's inputs hold, but not their shapes nor which outputs were asked for
// (core/src/cache_manager.cc, HashInputs).
void checkResponseCache(const Json& config, const std::string& model) {
  const size_t outputs = config["output"].items().size();
  if (config["response_cache"]["enable"].text() == "true" && outputs > 1) {
    refuse(model, "response_cache does not go with " + std::to_string(outputs) +
                      " outputs: whoever asks for one of them would get what another request for the same tokens asked "
                      "for; take response_cache out of config.pbtxt, or serve a model with one output");
  }
}

bool hasTimeouts(const Json& policy) {
  return readCount(policy["default_timeout_microseconds"].text()) > 0 ||
         policy["allow_timeout_override"].text() == "true";
}

}  // namespace

Settings readSettings(const Json& config) {
  const std::string& model = config["name"].text();
  const Json& parameter = config["parameters"][kMaxTokens];
  if (!parameter.isObject()) {
    refuse(model, std::string("parameter '") + kMaxTokens + "' is missing; add parameters { key: \"" + kMaxTokens +
                      "\" value { string_value: \"8192\" } } to config.pbtxt, with the engine's profile maximum");
  }
  Settings settings;
  const std::string& max_tokens = parameter["string_value"].text();
  settings.max_tokens = readCount(max_tokens);
  if (settings.max_tokens == 0) {
    refuse(model, std::string("parameter '") + kMaxTokens + "' is \"" + max_tokens +
                      "\", allowed: a whole number above 0; give the engine's profile maximum");
  }
  settings.input = findRaggedInput(config);
  if (settings.input.empty()) {
    refuse(model, "no input has allow_ragged_batch: true, so there are no tokens to count; set it for the token ids");
  }
  checkResponseCache(config, model);
  const Json& batching = config["dynamic_batching"];
  if (!batching.isObject()) {
    refuse(model, "a token budget needs dynamic batching; add dynamic_batching { } to config.pbtxt");
  }
  // The core sends batches of preferred sizes, and joins waiting ones, without asking.
  for (const Json& size : batching["preferred_batch_size"].items()) {
    if (size.text() != config["max_batch_size"].text()) {
      refuse(model, "preferred_batch_size " + size.text() + " does not go with a token budget; leave it out");
    }
  }
  settings.delays = readCount(batching["max_queue_delay_microseconds"].text()) > 0;
  // With these, TokenBudget could not tell which requests of an unsent batch still exist.
  if (settings.delays &&
      (hasTimeouts(batching["default_queue_policy"]) || readCount(batching["priority_levels"].text()) > 0)) {
    refuse(model,
           "max_queue_delay_microseconds does not go with a token budget and queue timeouts or priority_levels; "
           "set the delay to 0 (batches still form while the model is busy), or leave the others out");
  }
  return settings;
}

}  // namespace padfree
