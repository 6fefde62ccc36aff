// SPDX-License-Identifier: Apache-2.0
// Hostile metadata and configurations for Triton's native backend: what it reads before it serves a model.
#include <stdexcept>

#include "input.h"
#include "triton_backend/model_settings.h"
#include "triton_batching/failure.h"

void feedBackend(Input input) {
  const std::string text = input.text();
  try {
    const padfree::Metadata metadata = padfree::readMetadata(text, "model.plan.json");
    padfree::ModelSettings completed = padfree::readModelSettings(padfree::Json::parse(input.text()));
    padfree::completeConfiguration(completed, metadata);
    // What the server gets is what the backend reads again.
    const std::string config = completed.config.toText();
    const padfree::ModelSettings settings = padfree::readModelSettings(padfree::Json::parse(config));
    if (settings.config.toText() != config) __builtin_trap();
    padfree::checkConfiguration(settings, metadata);
  } catch (const padfree::Failure&) {
  } catch (const std::invalid_argument&) {
  }
}
