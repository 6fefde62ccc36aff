// SPDX-License-Identifier: Apache-2.0
#include "triton_backend/metrics.h"

namespace padfree {
namespace {

struct Description {
  const char* name;
  const char* text;
};
constexpr std::array<Description, kCounters> kDescriptions = {{
    {"padfree_refused_requests_total", "Requests that were answered with an error because they do not fit the model"},
    {"padfree_failed_requests_total", "Requests that were answered with an error which is not their fault"},
    {"padfree_tokens_total", "Tokens that were computed"},
    {"padfree_padded_tokens_total", "Tokens that the same runs would have had if padded to their longest sequence"},
    {"padfree_sequences_total", "Sequences that were computed"},
    {"padfree_runs_total", "Runs of the model"},
    {"padfree_truncated_texts_total", "Texts that lost their ends because the model does not take so many tokens"},
}};

std::string nameOf(TRITONBACKEND_ModelInstance* instance) {
  const char* name = nullptr;
  check(TRITONBACKEND_ModelInstanceName(instance, &name));
  return name;
}

}  // namespace

MetricFamilies::MetricFamilies() {
  for (size_t i = 0; i < kCounters; ++i) {
    const Description& description = kDescriptions[i];
    if (!succeeded(TRITONSERVER_MetricFamilyNew(&families_[i], TRITONSERVER_METRIC_KIND_COUNTER, description.name,
                                                description.text))) {
      families_[i] = nullptr;
    }
  }
}

MetricFamilies::~MetricFamilies() {
  for (TRITONSERVER_MetricFamily* family : families_) {
    if (family != nullptr) succeeded(TRITONSERVER_MetricFamilyDelete(family));
  }
}

InstanceMetrics::InstanceMetrics(const MetricFamilies& families, const std::string& model, const std::string& version,
                                 TRITONBACKEND_ModelInstance* instance, const std::vector<Counter>& counters) {
  const std::string name = nameOf(instance);
  const std::array<std::pair<const char*, const char*>, 3> labels = {
      {{"model", model.c_str()}, {"version", version.c_str()}, {"instance", name.c_str()}}};
  std::array<const TRITONSERVER_Parameter*, labels.size()> parameters{};
  for (size_t i = 0; i < labels.size(); ++i) {
    parameters[i] = TRITONSERVER_ParameterNew(labels[i].first, TRITONSERVER_PARAMETER_STRING, labels[i].second);
  }
  std::vector<Counter> all = {Counter::kRefused, Counter::kFailed};
  all.insert(all.end(), counters.begin(), counters.end());
  for (const Counter counter : all) {
    const auto i = static_cast<size_t>(counter);
    TRITONSERVER_MetricFamily* family = families.of(i);
    if (family == nullptr ||
        !succeeded(TRITONSERVER_MetricNew(&metrics_[i], family, parameters.data(), parameters.size()))) {
      metrics_[i] = nullptr;
    }
  }
  for (const TRITONSERVER_Parameter* parameter : parameters) {
    TRITONSERVER_ParameterDelete(const_cast<TRITONSERVER_Parameter*>(parameter));
  }
}

InstanceMetrics::~InstanceMetrics() {
  for (TRITONSERVER_Metric* metric : metrics_) {
    if (metric != nullptr) succeeded(TRITONSERVER_MetricDelete(metric));
  }
}

void InstanceMetrics::add(Counter counter, double value) const {
  TRITONSERVER_Metric* metric = metrics_[static_cast<size_t>(counter)];
  if (metric != nullptr) succeeded(TRITONSERVER_MetricIncrement(metric, value));
}

void InstanceMetrics::count(const Failure& failure) const {
  if (failure.code() == TRITONSERVER_ERROR_CANCELLED) return;
  add(failure.code() == TRITONSERVER_ERROR_INVALID_ARG ? Counter::kRefused : Counter::kFailed, 1);
}

}  // namespace padfree
