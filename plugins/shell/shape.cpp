// SPDX-License-Identifier: Apache-2.0
#include "shell/shape.h"

#include <limits>
#include <stdexcept>

#include "common/text.h"

namespace padfree {
namespace {

constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();

DimSpec parseDim(const std::string& token) {
  if (token.find_first_not_of("0123456789") == std::string::npos) return {"", std::stoll(token)};
  if (const size_t slash = token.find('/'); slash != std::string::npos) {
    return {token.substr(0, slash), 0, std::stoll(token.substr(slash + 1))};
  }
  const size_t plus = token.find('+');
  if (plus == std::string::npos) return {token, 0};
  return {token.substr(0, plus), std::stoll(token.substr(plus + 1))};
}

}  // namespace

ShapeSpec::ShapeSpec(const std::string& notation) : notation_(notation) {
  const size_t star = notation_.find('*');
  if (star != std::string::npos) notation_.replace(star, 1, "...");  // the same to the reader of a message
  std::istringstream inside(notation.substr(1, notation.size() - 2));
  for (std::string token; std::getline(inside, token, ',');) dims_.push_back(parseDim(token));
}

bool ShapeSpec::expand(int32_t rank, std::vector<DimSpec>& axes) const {
  const auto dim_count = static_cast<int32_t>(dims_.size());
  bool open = false;
  for (const DimSpec& dim : dims_) open = open || dim.spansAxes();
  if (open ? rank < dim_count - 1 : rank != dim_count) return false;
  axes.clear();
  for (const DimSpec& dim : dims_) {
    if (!dim.spansAxes()) {
      axes.push_back(dim);
      continue;
    }
    for (int32_t k = 0; k < rank - (dim_count - 1); ++k) {
      axes.push_back({dim.symbol == "*" ? std::string("*") : text("...", k), 0});
    }
  }
  return true;
}

std::string describe(const nvinfer1::Dims& dims) {
  std::vector<std::string> sizes;
  for (int32_t i = 0; i < dims.nbDims; ++i) sizes.push_back(text(dims.d[i]));
  return text('[', join(sizes, ","), ']');
}

void Sizes::bind(const char* tensor, const ShapeSpec& spec, const nvinfer1::Dims& dims) {
  const auto refuse = [&](const auto&... why) {
    throwInvalid("input ", tensor, " has shape ", describe(dims), "; allowed: ", spec.notation(), why...,
                 "; check the tensor that the graph feeds here");
  };
  std::vector<DimSpec> axes;
  if (!spec.expand(dims.nbDims, axes)) refuse();
  for (int32_t i = 0; i < dims.nbDims; ++i) {
    const DimSpec& axis = axes[i];
    if (dims.d[i] < 0) continue;
    if (dims.d[i] > kMaxSize) refuse(", sizes up to ", kMaxSize);
    if (axis.symbol == "*") continue;
    if (axis.symbol.empty()) {
      if (dims.d[i] != axis.offset) refuse();
      continue;
    }
    if (axis.divisor > 1) {  // of a letter that an input before has
      const int64_t whole = get(axis.symbol);
      if (whole >= 0 && dims.d[i] * axis.divisor != whole) refuse(" with ", axis.symbol, " = ", whole);
      continue;
    }
    const int64_t size = dims.d[i] - axis.offset;
    if (size < 0) refuse(" with ", axis.symbol, " at least 0");
    const auto [entry, is_new] = sizes_.try_emplace(axis.symbol, Source{size, tensor});
    if (!is_new && entry->second.size != size) {
      refuse(" with ", axis.symbol, " = ", entry->second.size, " as in input ", entry->second.tensor);
    }
  }
  for (const DimSpec& dim : spec.dims()) {
    if (dim.symbol != "...") continue;
    const int32_t group_rank = dims.nbDims - static_cast<int32_t>(spec.dims().size()) + 1;
    const auto [entry, is_new] = sizes_.try_emplace("rank of ...", Source{group_rank, tensor});
    if (!is_new && entry->second.size != group_rank) {
      refuse(" with ", entry->second.size, " axes for ... as in input ", entry->second.tensor);
    }
    group_rank_ = group_rank;
  }
}

int64_t Sizes::get(const std::string& symbol) const {
  const auto entry = sizes_.find(symbol);
  return entry == sizes_.end() ? -1 : entry->second.size;
}

void Sizes::checkProduct(const std::vector<std::string>& symbols) const {
  int64_t product = 1;
  for (const std::string& symbol : symbols) {
    const int64_t size = get(symbol);
    if (size <= 0) return;  // unknown or empty
    if (product > kMaxSize / size) {
      throwInvalid(join(symbols, "*"), " is above ", kMaxSize, " at ", symbol, " = ", size,
                   "; allowed: what int32 indices can count; use smaller batches");
    }
    product *= size;
  }
}

void SizeExpressions::bind(const ShapeSpec& spec, const nvinfer1::DimsExprs& dims) {
  std::vector<DimSpec> axes;
  spec.expand(dims.nbDims, axes);  // the caller has bound the same shape in Sizes: the rank fits
  for (int32_t i = 0; i < dims.nbDims; ++i) {
    const DimSpec& axis = axes[i];
    if (axis.symbol.empty() || axis.symbol == "*" || axis.divisor > 1 || sizes_.count(axis.symbol) != 0) continue;
    sizes_[axis.symbol] = axis.offset == 0 ? dims.d[i]
                                           : builder_.operation(nvinfer1::DimensionOperation::kSUB, *dims.d[i],
                                                                *builder_.constant(axis.offset));
  }
}

nvinfer1::DimsExprs SizeExpressions::build(const ShapeSpec& spec, int32_t group_rank) const {
  int32_t rank = 0;
  for (const DimSpec& dim : spec.dims()) rank += dim.spansAxes() ? group_rank : 1;
  if (rank > nvinfer1::Dims::MAX_DIMS) {
    throwInvalid("an output ", spec.notation(), " would have ", rank, " axes; allowed: up to ",
                 nvinfer1::Dims::MAX_DIMS, "; reshape the tensor in the graph");
  }
  std::vector<DimSpec> axes;
  spec.expand(rank, axes);
  nvinfer1::DimsExprs dims{};
  dims.nbDims = rank;
  for (int32_t i = 0; i < rank; ++i) {
    const DimSpec& axis = axes[i];
    if (axis.symbol.empty()) {
      dims.d[i] = builder_.constant(axis.offset);
    } else if (axis.divisor > 1) {
      dims.d[i] = builder_.operation(nvinfer1::DimensionOperation::kFLOOR_DIV, *get(axis.symbol),
                                     *builder_.constant(axis.divisor));
    } else if (axis.offset == 0) {
      dims.d[i] = get(axis.symbol);
    } else {
      dims.d[i] =
          builder_.operation(nvinfer1::DimensionOperation::kSUM, *get(axis.symbol), *builder_.constant(axis.offset));
    }
  }
  return dims;
}

const nvinfer1::IDimensionExpr& SizeExpressions::product(const std::vector<std::string>& symbols) const {
  const nvinfer1::IDimensionExpr* product = builder_.constant(1);
  for (const std::string& symbol : symbols) {
    product = builder_.operation(nvinfer1::DimensionOperation::kPROD, *product, *get(symbol));
  }
  return *product;
}

const nvinfer1::IDimensionExpr* SizeExpressions::get(const std::string& symbol) const {
  const auto entry = sizes_.find(symbol);
  if (entry == sizes_.end() || entry->second == nullptr) throw std::logic_error(text("no size for ", symbol));
  return entry->second;
}

}  // namespace padfree
