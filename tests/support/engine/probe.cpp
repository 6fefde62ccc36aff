// SPDX-License-Identifier: Apache-2.0
// Calls plugins/engine as far as that goes without a GPU: probe VERSION FILE opens the TensorRT of that version and has
// it deserialise the file. Prints the version, then the number of tensors, or the reason why there are none.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "engine/tensorrt.h"

int main(int count, char** arguments) {
  if (count != 3) return 2;
  try {
    const padfree::engine::TensorRtLibrary library(arguments[1]);
    std::printf("%s\n", library.version().c_str());
    std::ifstream file(arguments[2], std::ios::binary);
    const std::string plan((std::istreambuf_iterator<char>(file)), {});
    const padfree::engine::TensorRtEngine engine(library, plan, arguments[2]);
    std::printf("%d tensors\n", engine.tensorCount());
    return 0;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
