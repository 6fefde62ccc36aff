// SPDX-License-Identifier: Apache-2.0
// The library's entry point for TensorRT; the other one, setLoggerFinder, stands in logging.cpp.
#include <array>
#include <memory>

#include "shell/logging.h"
#include "shell/schemas.h"
#include "shell/shell.h"

namespace padfree {
namespace {

using Creators = std::array<nvinfer1::IPluginCreatorInterface*, kOperators.size()>;

const Creators& creators() {
  // Never destroyed: TensorRT's registry may outlive this library's static objects.
  static const Creators* const instance = [] {
    auto list = std::make_unique<Creators>();
    for (size_t i = 0; i < kOperators.size(); ++i) (*list)[i] = new Creator(kOperators[i]());
    return list.release();
  }();
  return *instance;
}

}  // namespace
}  // namespace padfree

extern "C" __attribute__((visibility("default"))) nvinfer1::IPluginCreatorInterface* const* getCreators(
    int32_t& count) noexcept {
  count = 0;
  return padfree::guard("getCreators", static_cast<nvinfer1::IPluginCreatorInterface* const*>(nullptr), [&] {
    const padfree::Creators& list = padfree::creators();
    count = static_cast<int32_t>(list.size());
    return list.data();
  });
}
