// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "triton_backend/model.h"
#include "triton_backend/served_instance.h"
#include "triton_backend/text_tokenizer.h"

namespace padfree {

// A model that turns texts into token ids, for callers who want these. It has no plan and needs no GPU.
class TextModel {
 public:
  // folder: that of the version. Throws Failure if files and configuration do not fit together.
  TextModel(std::shared_ptr<const Backend> backend, const std::string& folder, std::string version, const Json& config);

  const Backend& backend() const { return *backend_; }
  const std::string& name() const { return name_; }
  const std::string& version() const { return version_; }
  const TextTokenizer& tokenizer() const { return tokenizer_; }

 private:
  const std::shared_ptr<const Backend> backend_;
  const std::string name_, version_;
  const TextTokenizer tokenizer_;
};

// An instance of such a model, which answers in the server's thread.
class TextInstance : public ServedInstance {
 public:
  TextInstance(std::shared_ptr<TextModel> model, TRITONBACKEND_ModelInstance* handle);

  void execute(TRITONBACKEND_Request** requests, uint32_t count) override;

 private:
  struct Waiting {
    OpenRequest* request;
    TextRequest texts;
    std::vector<std::string> wanted;  // names of outputs
  };

  void serve(const Waiting& waiting) const;

  const std::shared_ptr<TextModel> model_;
  TRITONBACKEND_ModelInstance* const handle_;
  const InstanceMetrics metrics_;
};

}  // namespace padfree
