// SPDX-License-Identifier: Apache-2.0
#include "shell/logging.h"

#include <cstdio>
#include <mutex>

#include "shell/tensorrt_abi.h"

namespace padfree {
namespace {

struct Finder {
  void* object = nullptr;
  int major = 0;
};

std::mutex finder_mutex;
Finder finder;  // what TensorRT gave to setLoggerFinder last, under finder_mutex

constexpr int32_t kErrorSeverity = 1;  // ILogger::Severity::kERROR in both majors

// A logger of the finder's or of the process; null where none is known. `major` becomes its TensorRT's.
void* findLogger(int& major) {
  Finder current;
  {
    const std::lock_guard<std::mutex> lock(finder_mutex);
    current = finder;
  }
  major = current.major;
  void* logger = nullptr;
  if (major >= kFirstVersionedMajor) {
    logger = static_cast<nvinfer1::ILoggerFinder*>(current.object)->findLogger();
  } else if (major >= kOldestMajor) {
    logger = static_cast<tensorrt10::LoggerFinder*>(current.object)->findLogger();
  }
  if (logger != nullptr) return logger;
  for (const TensorRt& tensorrt : loadedTensorRts()) {
    auto* getLogger = tensorrt.find<void*()>("getLogger");
    logger = getLogger == nullptr ? nullptr : getLogger();
    major = tensorrt.major;
    if (logger != nullptr) return logger;
  }
  return nullptr;
}

}  // namespace

void logError(const std::string& message) noexcept {
  try {
    const std::string line = "padfree: " + message;
    int major = 0;
    void* logger = findLogger(major);
    if (logger == nullptr) {
      std::fprintf(stderr, "%s\n", line.c_str());
    } else if (major >= kFirstVersionedMajor) {
      static_cast<nvinfer1::ILogger*>(logger)->log(nvinfer1::ILogger::Severity::kERROR, line.c_str());
    } else {
      static_cast<tensorrt10::Logger*>(logger)->log(kErrorSeverity, line.c_str());
    }
  } catch (...) {
    std::fprintf(stderr, "padfree: an error could not be logged\n");
  }
}

}  // namespace padfree

// TensorRT calls this when it loads the library. void*: the class that it points to differs between 10.x and 11.x.
extern "C" __attribute__((visibility("default"))) void setLoggerFinder(void* object) noexcept {
  try {
    const int major = object == nullptr ? 0 : padfree::tensorRtOf(object).major;
    const std::lock_guard<std::mutex> lock(padfree::finder_mutex);
    padfree::finder = {object, major};
  } catch (...) {
    std::fprintf(stderr, "padfree: TensorRT's logger could not be taken over\n");
  }
}
