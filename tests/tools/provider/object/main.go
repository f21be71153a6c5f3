// A provider with one resource: a text at a URL. Changing the text by hand makes drift with a real provider, without other services.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

func main() {
	options := providerserver.ServeOpts{Address: "registry.opentofu.org/pawl/object"}
	if err := providerserver.Serve(context.Background(), func() provider.Provider { return objects{} }, options); err != nil {
		log.Fatal(err)
	}
}

type objects struct{}

func (objects) Metadata(_ context.Context, _ provider.MetadataRequest, answer *provider.MetadataResponse) {
	answer.TypeName = "object"
}
func (objects) Schema(context.Context, provider.SchemaRequest, *provider.SchemaResponse)          {}
func (objects) Configure(context.Context, provider.ConfigureRequest, *provider.ConfigureResponse) {}
func (objects) DataSources(context.Context) []func() datasource.DataSource                        { return nil }
func (objects) Resources(context.Context) []func() resource.Resource {
	return []func() resource.Resource{func() resource.Resource { return text{} }}
}

type text struct{}

type model struct {
	URL     types.String `tfsdk:"url"`
	Content types.String `tfsdk:"content"`
}

func (text) Metadata(_ context.Context, asked resource.MetadataRequest, answer *resource.MetadataResponse) {
	answer.TypeName = asked.ProviderTypeName + "_text"
}

func (text) Schema(_ context.Context, _ resource.SchemaRequest, answer *resource.SchemaResponse) {
	answer.Schema = schema.Schema{Attributes: map[string]schema.Attribute{
		"url": schema.StringAttribute{
			Required:      true,
			PlanModifiers: []planmodifier.String{stringplanmodifier.RequiresReplace()},
		},
		"content": schema.StringAttribute{Required: true},
	}}
}

// send sends a request and returns the server's text; found is false if there is none.
func send(ctx context.Context, method, url, content string) (text string, found bool, err error) {
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewBufferString(content))
	if err != nil {
		return "", false, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", false, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if answer.StatusCode == http.StatusNotFound {
		return "", false, err
	}
	if answer.StatusCode >= 300 {
		return "", false, fmt.Errorf("%s %s: %s", method, url, answer.Status)
	}
	return string(body), true, err
}

func (text) Create(ctx context.Context, asked resource.CreateRequest, answer *resource.CreateResponse) {
	var wanted model
	answer.Diagnostics.Append(asked.Plan.Get(ctx, &wanted)...)
	if _, _, err := send(ctx, http.MethodPut, wanted.URL.ValueString(), wanted.Content.ValueString()); err != nil {
		answer.Diagnostics.AddError("The object was not written", err.Error())
		return
	}
	answer.Diagnostics.Append(answer.State.Set(ctx, &wanted)...)
}

func (text) Read(ctx context.Context, asked resource.ReadRequest, answer *resource.ReadResponse) {
	var known model
	answer.Diagnostics.Append(asked.State.Get(ctx, &known)...)
	content, found, err := send(ctx, http.MethodGet, known.URL.ValueString(), "")
	switch {
	case err != nil:
		answer.Diagnostics.AddError("The object was not read", err.Error())
	case !found:
		answer.State.RemoveResource(ctx)
	default:
		answer.Diagnostics.Append(answer.State.SetAttribute(ctx, path.Root("content"), content)...)
	}
}

func (text) Update(ctx context.Context, asked resource.UpdateRequest, answer *resource.UpdateResponse) {
	var wanted model
	answer.Diagnostics.Append(asked.Plan.Get(ctx, &wanted)...)
	if _, _, err := send(ctx, http.MethodPut, wanted.URL.ValueString(), wanted.Content.ValueString()); err != nil {
		answer.Diagnostics.AddError("The object was not written", err.Error())
		return
	}
	answer.Diagnostics.Append(answer.State.Set(ctx, &wanted)...)
}

func (text) Delete(ctx context.Context, asked resource.DeleteRequest, answer *resource.DeleteResponse) {
	var known model
	answer.Diagnostics.Append(asked.State.Get(ctx, &known)...)
	if _, _, err := send(ctx, http.MethodDelete, known.URL.ValueString(), ""); err != nil {
		answer.Diagnostics.AddError("The object was not removed", err.Error())
	}
}
